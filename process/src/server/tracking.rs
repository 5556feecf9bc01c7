//! Records the activity of a connection: wrappers of its stream and its requests.

use super::{
    activity::Activity,
    bodies::{RequestState, TrackedRequestBody, TrackedResponseBody},
    connections::OpenConnection,
    messages::{IncomingMessage, MessageClient},
};
use axum::{
    Router,
    body::Body,
    extract::{ConnectInfo, Request},
    http::{HeaderValue, Response, StatusCode, Version, header::CONNECTION},
    routing::future::RouteFuture,
};
use hyper::body::Incoming;
use pin_project_lite::pin_project;
use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tower_service::Service as _;

/// The largest number of fields of a request head: hyper's limit in HTTP/1.1. In HTTP/2, a field can have one byte, and fields in
/// memory are many times larger.
const MAX_FIELDS: usize = 100;

/// The routes of a port for one connection.
pub(super) struct TrackedService {
    pub(super) routes: Router,
    pub(super) connection: Arc<OpenConnection>,
    /// The address of the peer; `None` for a Unix socket.
    pub(super) peer: Option<SocketAddr>,
    /// `None` if the messages of the port have no limits.
    pub(super) message_client: Option<Arc<MessageClient>>,
}

impl hyper::service::Service<hyper::Request<Incoming>> for TrackedService {
    type Response = Response<TrackedResponseBody>;
    type Error = Infallible;
    type Future = ResponseFuture;

    fn call(&self, request: hyper::Request<Incoming>) -> Self::Future {
        let activity = Arc::clone(&self.connection.activity);
        let is_http1 = request.version() < Version::HTTP_2;
        if activity.begin_request(is_http1) {
            self.connection.establish();
        }
        let state = Some(RequestState { activity: Arc::clone(&activity), responding: false });
        if request.headers().len() > MAX_FIELDS {
            return ResponseFuture { response: RoutedResponse::Refused, state, closes: is_http1 };
        }
        let message = |client| IncomingMessage::new(client, request.uri(), request.headers());
        let message = self.message_client.as_ref().map(message);
        let mut request: Request = request.map(|body| Body::new(TrackedRequestBody::new(body, activity, message)));
        if let Some(peer) = self.peer {
            request.extensions_mut().insert(ConnectInfo(peer));
        }
        let response = RoutedResponse::Routed { response: self.routes.clone().call(request) };
        ResponseFuture { response, state, closes: is_http1 }
    }
}

pin_project! {
    /// Where the response to a request comes from.
    #[project = RoutedResponseProjection]
    enum RoutedResponse {
        Routed { #[pin] response: RouteFuture<Infallible> },
        // The head has too many fields.
        Refused,
    }
}

pin_project! {
    /// The response to one request.
    pub(super) struct ResponseFuture {
        #[pin]
        response: RoutedResponse,
        state: Option<RequestState>,
        // Whether the protocol of the request announces the end of the connection in the head of a response.
        closes: bool,
    }
}

impl Future for ResponseFuture {
    type Output = Result<Response<TrackedResponseBody>, Infallible>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let mut response = match this.response.project() {
            RoutedResponseProjection::Routed { response } => ready!(response.poll(context))?,
            RoutedResponseProjection::Refused => too_many_fields(),
        };
        let mut state = this.state.take();
        if let Some(state) = &mut state {
            state.responding = true;
            state.activity.begin_response();
            if *this.closes && state.activity.is_closing() {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
        }
        Poll::Ready(Ok(response.map(|body| TrackedResponseBody::new(body, state))))
    }
}

fn too_many_fields() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
    response
}

/// The stream of a connection, which records whether the client lets the server write.
pub(super) struct TrackedStream<S> {
    pub(super) stream: S,
    pub(super) activity: Arc<Activity>,
}

impl<S> TrackedStream<S> {
    fn record<T>(&self, result: Poll<T>) -> Poll<T> {
        self.activity.set_write_blocked(result.is_pending());
        result
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TrackedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let filled = buffer.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > filled {
            self.activity.record_read();
        }
        result
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TrackedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.record(result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.record(result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_flush(context);
        self.record(result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
