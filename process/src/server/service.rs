//! Passes the requests of one connection to the routes of its port, and records when this server works on them.

use super::{
    STALL_TIMEOUT,
    connections::OpenConnection,
    listener::ConnectionAddresses,
    messages::{IncomingMessage, MessageLimits},
};
use crate::Shutdown;
use axum::{
    BoxError, Router,
    body::{Body, Bytes, HttpBody},
    extract::{ConnectInfo, Request},
    http::{HeaderValue, Response, StatusCode, Version, header::CONNECTION},
    routing::future::RouteFuture,
};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use pin_project_lite::pin_project;
use std::{
    convert::Infallible,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
};
use tokio::time::{Sleep, sleep};
use tower_service::Service as _;

/// The maximum number of fields of a request head. This is hyper's limit in HTTP/1.1. HTTP/2 needs it, too: even a field of one
/// byte takes much memory.
const MAX_FIELDS: usize = 100;

/// The routes of a port for one connection.
pub(super) struct ConnectionService {
    pub(super) routes: Router,
    /// `None` for a Unix socket.
    pub(super) addresses: Option<ConnectionAddresses>,
    pub(super) connection: Arc<OpenConnection>,
    /// `None` if the messages of the port have no limits.
    pub(super) messages: Option<Arc<MessageLimits>>,
    pub(super) responses_last: bool,
    pub(super) shutdown: Shutdown,
}

impl hyper::service::Service<hyper::Request<Incoming>> for ConnectionService {
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    type Future = ResponseFuture;

    fn call(&self, request: hyper::Request<Incoming>) -> Self::Future {
        self.connection.receive_request();
        let work = Arc::new(Work { connection: Arc::clone(&self.connection), has_begun: AtomicBool::new(false) });
        if self.responses_last || request.body().is_end_stream() {
            work.begin();
        }
        let ends_connection = request.version() < Version::HTTP_2 && self.shutdown.is_requested();
        let response = if request.headers().len() > MAX_FIELDS {
            RoutedResponse::Refused
        } else {
            RoutedResponse::Routed { response: self.routes.clone().call(self.tracked(request, &work)) }
        };
        ResponseFuture { response, work: Some(work), responses_last: self.responses_last, ends_connection }
    }
}

impl ConnectionService {
    /// The request as the routes see it.
    fn tracked(&self, request: hyper::Request<Incoming>, work: &Arc<Work>) -> Request {
        let client = self.addresses.map(|addresses| addresses.peer.ip());
        let new_message = |limits| IncomingMessage::new(limits, client, request.uri(), request.headers());
        let message = self.messages.as_ref().map(new_message);
        let may_stall = self.responses_last;
        let new_body = |body| RequestBody { body, work: Arc::clone(work), message, may_stall, stall: None };
        let mut request = request.map(|body| Body::new(new_body(body)));
        if let Some(addresses) = self.addresses {
            request.extensions_mut().insert(ConnectInfo(addresses));
        }
        request
    }
}

/// The work of this server on a request. While it lasts, the connection is not closed for another one. It begins when the request
/// has arrived completely, so that an unfinished request keeps no connection open; if responses are long streams, it begins at
/// once. It ends when this is dropped.
struct Work {
    connection: Arc<OpenConnection>,
    has_begun: AtomicBool,
}

impl Work {
    fn begin(&self) {
        if !self.has_begun.swap(true, Relaxed) {
            self.connection.begin_work();
        }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.connection.end_request(*self.has_begun.get_mut());
    }
}

/// The body of a request, whose next part must arrive in time unless the request lasts as long as its response.
struct RequestBody {
    body: Incoming,
    work: Arc<Work>,
    /// `None` if the messages of the port have no limits.
    message: Option<IncomingMessage>,
    /// Whether the next part may take any time.
    may_stall: bool,
    /// The timeout that runs while the server waits for the next part.
    stall: Option<Pin<Box<Sleep>>>,
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        let frame = Pin::new(&mut this.body).poll_frame(context).map_err(BoxError::from);
        let is_last = this.body.is_end_stream();
        let frame = match &mut this.message {
            Some(message) => message.receive(frame, is_last),
            None => frame,
        };
        match &frame {
            Poll::Pending if this.may_stall => {}
            Poll::Pending => {
                let stall = this.stall.get_or_insert_with(|| Box::pin(sleep(STALL_TIMEOUT)));
                ready!(stall.as_mut().poll(context));
                return Poll::Ready(Some(Err(io::Error::from(io::ErrorKind::TimedOut).into())));
            }
            Poll::Ready(Some(Ok(_))) if !is_last => this.stall = None,
            Poll::Ready(_) => this.work.begin(),
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

pin_project! {
    /// The source of a response: the routes, or a refusal before them.
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
        work: Option<Arc<Work>>,
        responses_last: bool,
        // Whether the head of the response announces the end of the connection.
        ends_connection: bool,
    }
}

impl Future for ResponseFuture {
    type Output = Result<Response<ResponseBody>, Infallible>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let mut response = match this.response.project() {
            RoutedResponseProjection::Routed { response } => ready!(response.poll(context))?,
            RoutedResponseProjection::Refused => too_many_fields(),
        };
        if *this.ends_connection {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        let work = this.work.take().filter(|_| *this.responses_last);
        Poll::Ready(Ok(response.map(|body| ResponseBody { body, _work: work })))
    }
}

fn too_many_fields() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
    response
}

/// The body of a response. While it exists, this server works on its request if `_work` is set.
pub(super) struct ResponseBody {
    body: Body,
    _work: Option<Arc<Work>>,
}

impl HttpBody for ResponseBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
