//! Envoy's gRPC service `Authorization`, with responses that encode themselves.
//!
//! The service is written by hand only because the generated one needs a `CheckResponse` for each response.

use super::{Authorizer, request::CheckRequest};
use crate::response::Reply;
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
    codec::{BufferSettings, Codec, EncodeBuf, Encoder},
    codegen::{BoxFuture, Service, http},
    server::{Grpc, NamedService, UnaryService},
};
use tonic_prost::{ProstCodec, ProstDecoder};

/// The path of the only method.
const CHECK_PATH: &str = "/envoy.service.auth.v3.Authorization/Check";

/// The size of the buffers for a request and for its response, which grow if needed. A usual request has 1 to 2 KiB.
const BUFFER_BYTES: usize = 2048;

/// Envoy's gRPC service.
#[derive(Clone)]
pub struct AuthorizationServer {
    authorizer: Arc<Authorizer>,
    max_request_bytes: usize,
}

impl AuthorizationServer {
    /// A service that decides with this authorizer, and refuses larger requests with a gRPC error.
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
            let mut grpc = Grpc::new(CheckCodec).max_decoding_message_size(max_request_bytes);
            Ok(grpc.unary(CheckMethod(authorizer), request).await)
        })
    }
}

struct CheckMethod(Arc<Authorizer>);

impl UnaryService<CheckRequest> for CheckMethod {
    type Response = Reply;
    type Future = Ready<Result<Response<Reply>, Status>>;

    fn call(&mut self, request: Request<CheckRequest>) -> Self::Future {
        ready(Ok(Response::new(self.0.check(request.get_ref()))))
    }
}

/// Decodes requests with prost, and encodes [`Reply`].
struct CheckCodec;

impl Codec for CheckCodec {
    type Encode = Reply;
    type Decode = CheckRequest;
    type Encoder = ReplyEncoder;
    type Decoder = ProstDecoder<CheckRequest>;

    fn encoder(&mut self) -> ReplyEncoder {
        ReplyEncoder
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstCodec::<CheckResponse, CheckRequest>::raw_decoder(buffer_settings())
    }
}

struct ReplyEncoder;

impl Encoder for ReplyEncoder {
    type Item = Reply;
    type Error = Status;

    fn encode(&mut self, reply: Reply, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        reply.encode(buffer);
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        buffer_settings()
    }
}

fn buffer_settings() -> BufferSettings {
    BufferSettings::new(BUFFER_BYTES, BUFFER_BYTES)
}
