//! The limit of a gRPC server on tonic and `envoy-types`: it decodes each request and allows it.

use envoy_types::{
    ext_authz::v3::pb::{Authorization, AuthorizationServer, CheckRequest, CheckResponse},
    pb::google::rpc,
};
use tokio::net::{TcpListener, UnixListener};
use tokio_stream::wrappers::{TcpListenerStream, UnixListenerStream};
use tonic::{Request, Response, Status, transport::Server};

struct AllowAll;

#[tonic::async_trait]
impl Authorization for AllowAll {
    async fn check(&self, _request: Request<CheckRequest>) -> Result<Response<CheckResponse>, Status> {
        Ok(Response::new(CheckResponse { status: Some(rpc::Status::default()), ..CheckResponse::default() }))
    }
}

/// Serves `unix:<path>` or `<ip>:<port>` until the process is killed.
pub async fn serve(address: &str) {
    let server = Server::builder().add_service(AuthorizationServer::new(AllowAll));
    let result = if let Some(path) = address.strip_prefix("unix:") {
        let listener = UnixListener::bind(path).expect("the socket is free");
        server.serve_with_incoming(UnixListenerStream::new(listener)).await
    } else {
        let listener = TcpListener::bind(address).await.expect("the port is free");
        server.serve_with_incoming(TcpListenerStream::new(listener)).await
    };
    result.expect("the server runs");
}
