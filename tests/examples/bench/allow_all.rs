//! A gRPC server on tonic that decodes each request and allows it: the sidecar cannot be faster.
//!
//! Its response is empty, or one that was recorded from the sidecar, whose headers and metadata identify the agent. The server
//! encodes the response anew for each request.

use countersign_proto::{
    envoy::service::auth::v3::{
        CheckRequest, CheckResponse,
        authorization_server::{Authorization, AuthorizationServer},
    },
    google::rpc,
};
use prost::Message as _;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status, transport::Server};

struct AllowAll(CheckResponse);

#[tonic::async_trait]
impl Authorization for AllowAll {
    async fn check(&self, _request: Request<CheckRequest>) -> Result<Response<CheckResponse>, Status> {
        Ok(Response::new(self.0.clone()))
    }
}

/// A response that allows a request and contains nothing else.
pub fn empty_response() -> CheckResponse {
    CheckResponse { status: Some(rpc::Status::default()), ..CheckResponse::default() }
}

/// Serves a Unix socket until the process is killed. The file contains the encoded response.
pub async fn serve(socket: &str, response: &str) {
    let encoded = std::fs::read(response).expect("the file is readable");
    let response = CheckResponse::decode(&*encoded).expect("the file contains a response");
    let listener = UnixListener::bind(socket).expect("the socket is free");
    let server = Server::builder().add_service(AuthorizationServer::new(AllowAll(response)));
    server.serve_with_incoming(UnixListenerStream::new(listener)).await.expect("the server runs");
}
