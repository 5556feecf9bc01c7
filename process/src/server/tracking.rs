//! Records the activity of a connection: wrappers of its stream, its requests and its responses.

use super::{activity::Activity, connections::OpenConnection};
use axum::{
    Router,
    body::{Body, Bytes, HttpBody},
    extract::{ConnectInfo, Request},
    http::{HeaderValue, Response, Version, header::CONNECTION},
    routing::future::RouteFuture,
};
use http_body::{Frame, SizeHint};
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

/// The routes of a port for one connection.
pub(super) struct TrackedService {
    pub(super) routes: Router,
    pub(super) connection: Arc<OpenConnection>,
    /// The address of the peer; `None` for a Unix socket.
    pub(super) peer: Option<SocketAddr>,
}

impl hyper::service::Service<hyper::Request<Incoming>> for TrackedService {
    type Response = Response<TrackedResponseBody>;
    type Error = Infallible;
    type Future = ResponseFuture;

    fn call(&self, request: hyper::Request<Incoming>) -> Self::Future {
        let activity = Arc::clone(&self.connection.activity);
        if activity.begin_request() {
            self.connection.establish();
        }
        let state = RequestState { activity: Arc::clone(&activity), responding: false };
        let closes = request.version() < Version::HTTP_2;
        let mut request: Request = request.map(|body| Body::new(TrackedRequestBody::new(body, activity)));
        if let Some(peer) = self.peer {
            request.extensions_mut().insert(ConnectInfo(peer));
        }
        ResponseFuture { response: self.routes.clone().call(request), state: Some(state), closes }
    }
}

/// A request in progress. Dropping it records its end.
struct RequestState {
    activity: Arc<Activity>,
    /// Whether the response has begun.
    responding: bool,
}

impl Drop for RequestState {
    fn drop(&mut self) {
        if self.responding { self.activity.end_response() } else { self.activity.end_request() }
    }
}

pin_project! {
    /// The response to one request.
    pub(super) struct ResponseFuture {
        #[pin]
        response: RouteFuture<Infallible>,
        state: Option<RequestState>,
        // Whether the protocol of the request announces the end of the connection in the head of a response.
        closes: bool,
    }
}

impl Future for ResponseFuture {
    type Output = Result<Response<TrackedResponseBody>, Infallible>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let mut response = ready!(this.response.poll(context))?;
        let mut state = this.state.take();
        if let Some(state) = &mut state {
            state.responding = true;
            state.activity.begin_response();
            if *this.closes && state.activity.is_closing() {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
        }
        Poll::Ready(Ok(response.map(|body| TrackedResponseBody { body, state, awaiting_data: false })))
    }
}

/// The body of a request, which records when it has arrived.
struct TrackedRequestBody {
    body: Incoming,
    /// `None` after the end of the body.
    activity: Option<Arc<Activity>>,
}

impl TrackedRequestBody {
    fn new(body: Incoming, activity: Arc<Activity>) -> Self {
        let activity = (!body.is_end_stream()).then_some(activity);
        if let Some(activity) = &activity {
            activity.begin_body();
        }
        Self { body, activity }
    }

    fn end(&mut self) {
        if let Some(activity) = self.activity.take() {
            activity.end_body();
        }
    }
}

impl HttpBody for TrackedRequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if frame.is_none() || self.body.is_end_stream() {
            self.end();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for TrackedRequestBody {
    fn drop(&mut self) {
        self.end();
    }
}

/// The body of a response, which records whether it waits for the server or for the client.
pub(super) struct TrackedResponseBody {
    body: Body,
    state: Option<RequestState>,
    awaiting_data: bool,
}

impl TrackedResponseBody {
    fn set_awaiting_data(&mut self, awaiting: bool) {
        if let Some(state) = &self.state
            && self.awaiting_data != awaiting
        {
            self.awaiting_data = awaiting;
            state.activity.set_awaiting_data(awaiting);
        }
    }
}

impl HttpBody for TrackedResponseBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        self.set_awaiting_data(frame.is_pending());
        if let (true, Some(state)) = (frame.is_ready(), &self.state) {
            state.activity.record_progress();
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for TrackedResponseBody {
    fn drop(&mut self) {
        self.set_awaiting_data(false);
    }
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
        Pin::new(&mut self.stream).poll_read(context, buffer)
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
