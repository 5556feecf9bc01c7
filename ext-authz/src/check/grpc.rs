//! Envoy's gRPC service `Authorization`. It is written by hand, because the generated one would decode all fields of a request.

use super::{Authorizer, request::CheckRequest};
use countersign_proto::envoy::service::auth::v3::CheckResponse;
use std::{
    convert::Infallible,
    future::{Ready, ready},
    sync::Arc,
    task::{Context, Poll},
};
use tonic::{
    Request, Response, Status,
    body::Body,
    codegen::{BoxFuture, Service, http},
    server::{Grpc, NamedService, UnaryService},
};
use tonic_prost::ProstCodec;

/// The path of the service's only method.
const CHECK_PATH: &str = "/envoy.service.auth.v3.Authorization/Check";

#[derive(Clone)]
pub struct AuthorizationServer {
    authorizer: Arc<Authorizer>,
    max_request_bytes: usize,
}

impl AuthorizationServer {
    /// A request of more than `max_request_bytes` gets a gRPC error, and no decision.
    pub const fn new(authorizer: Arc<Authorizer>, max_request_bytes: usize) -> Self {
        Self { authorizer, max_request_bytes }
    }
}

impl NamedService for AuthorizationServer {
    const NAME: &'static str = "envoy.service.auth.v3.Authorization";
}

impl Service<http::Request<Body>> for AuthorizationServer {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let Self { authorizer, max_request_bytes } = self.clone();
        Box::pin(async move {
            if request.uri().path() != CHECK_PATH {
                return Ok(Status::unimplemented("the service has only the method `Check`").into_http());
            }
            let mut grpc = Grpc::new(ProstCodec::<CheckResponse, CheckRequest>::default())
                .max_decoding_message_size(max_request_bytes);
            Ok(grpc.unary(CheckMethod(authorizer), request).await)
        })
    }
}

struct CheckMethod(Arc<Authorizer>);

impl UnaryService<CheckRequest> for CheckMethod {
    type Response = CheckResponse;
    type Future = Ready<Result<Response<CheckResponse>, Status>>;

    fn call(&mut self, request: Request<CheckRequest>) -> Self::Future {
        ready(Ok(Response::new(self.0.check(request.get_ref()))))
    }
}
