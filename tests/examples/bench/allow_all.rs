//! The limit of a gRPC server on tonic and `envoy-types`: it decodes each request and allows it.
//!
//! It answers with an empty response, or with a recorded response of the sidecar, whose headers and metadata identify the agent. It
//! encodes the response anew for each request.

use envoy_types::{
    ext_authz::v3::pb::{Authorization, AuthorizationServer, CheckRequest, CheckResponse},
    pb::google::rpc,
};
use prost::Message as _;
use tokio::net::{TcpListener, UnixListener};
use tokio_stream::wrappers::{TcpListenerStream, UnixListenerStream};
use tonic::{Request, Response, Status, transport::Server};

struct AllowAll(CheckResponse);

#[tonic::async_trait]
impl Authorization for AllowAll {
    async fn check(&self, _request: Request<CheckRequest>) -> Result<Response<CheckResponse>, Status> {
        Ok(Response::new(self.0.clone()))
    }
}

/// Serves `unix:<path>` or `<ip>:<port>` until the process is killed. `response` is a file that contains an
/// encoded `CheckResponse`; without it, the response is empty.
pub async fn serve(address: &str, response: Option<&str>) {
    let empty = CheckResponse { status: Some(rpc::Status::default()), ..CheckResponse::default() };
    let response = response.map_or(empty, |file| {
        let encoded = std::fs::read(file).expect("the file is readable");
        CheckResponse::decode(&*encoded).expect("the file contains a response")
    });
    let server = Server::builder().add_service(AuthorizationServer::new(AllowAll(response)));
    let result = if let Some(path) = address.strip_prefix("unix:") {
        let listener = UnixListener::bind(path).expect("the socket is free");
        server.serve_with_incoming(UnixListenerStream::new(listener)).await
    } else {
        let listener = TcpListener::bind(address).await.expect("the port is free");
        server.serve_with_incoming(TcpListenerStream::new(listener)).await
    };
    result.expect("the server runs");
}
