//! An HTTP/1.1 server on loopback that receives webhooks and verifies their signatures.
//!
//! A request is answered after its consumer acknowledged it, so that an event that was not printed is sent again. Every
//! user of this machine can connect, so the sizes of bodies and heads, the number of connections and the durations of
//! reads are limited.

use crate::cli::CliError;
use countersign_client::{Verifier, WebhookError, clock, webhook::ID};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{ALLOW, CONTENT_TYPE, HeaderMap, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
};
use serde_json::Value;
use std::{convert::Infallible, io, net::Ipv4Addr, sync::Arc, time::Duration};
use tokio::{
    net::TcpListener,
    sync::{Semaphore, mpsc, oneshot},
    task::JoinHandle,
    time::timeout,
};

/// The largest body, in bytes. Events are far smaller than this maximum.
const MAX_BODY: usize = 256 * 1024;

/// The largest head, in bytes.
const MAX_HEAD: usize = 32 * 1024;

/// The number of concurrent connections.
const MAX_CONNECTIONS: usize = 32;

/// The timeout for a head, and for a body.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// The pause after a connection could not be accepted.
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(100);

/// The timeout for pending responses when the server stops.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// A request that may be an event.
pub struct ReceivedRequest {
    /// The id of the event, from the header `webhook-id`.
    pub id: Option<String>,
    /// The body as JSON, or as a string if it is not JSON.
    pub body: Value,
    /// Why the request is invalid, or `None` if it is valid.
    pub problem: Option<WebhookError>,
    acknowledged: oneshot::Sender<()>,
}

/// A bound port that accepts no connections yet.
pub struct BoundReceiver {
    listener: TcpListener,
    port: u16,
}

/// A running receiver.
pub struct Receiver {
    requests: mpsc::Receiver<ReceivedRequest>,
    stop: oneshot::Sender<()>,
    server: JoinHandle<()>,
}

/// The state that all connections share.
struct State {
    verifier: Verifier,
    requests: mpsc::Sender<ReceivedRequest>,
}

impl ReceivedRequest {
    /// Whether the signature is valid, also if the body is not an event.
    pub const fn is_signed(&self) -> bool {
        match self.problem {
            None | Some(WebhookError::NotAnEvent) => true,
            Some(
                WebhookError::Missing(_)
                | WebhookError::Repeated(_)
                | WebhookError::Unreadable(_)
                | WebhookError::UnknownVersion
                | WebhookError::WrongSignature
                | WebhookError::TooOld
                | WebhookError::TooNew,
            ) => false,
        }
    }

    /// Allows the response to be sent.
    pub fn acknowledge(self) {
        // The connection that waits for the acknowledgement may have ended.
        let _ignored = self.acknowledged.send(());
    }
}

impl BoundReceiver {
    /// Binds a port of loopback; 0 is any free port.
    pub async fn bind(port: u16) -> Result<Self, CliError> {
        let bound = async {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
            let port = listener.local_addr()?.port();
            io::Result::Ok(Self { listener, port })
        };
        bound.await.map_err(|error| {
            CliError::Failed(format!("port {port}: {error}\nNext: pass another --port, or none for a free one"))
        })
    }

    /// The URL of the receiver.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/", self.port)
    }

    /// Starts to accept connections.
    pub fn start(self, verifier: Verifier) -> Receiver {
        let (sender, requests) = mpsc::channel(1);
        let (stop, stopped) = oneshot::channel();
        let state = Arc::new(State { verifier, requests: sender });
        Receiver { requests, stop, server: tokio::spawn(accept(self.listener, state, stopped)) }
    }
}

impl Receiver {
    /// The next request that may be an event.
    pub async fn next(&mut self) -> Option<ReceivedRequest> {
        self.requests.recv().await
    }

    /// Stops, after the responses to acknowledged requests were sent.
    pub async fn close(self) {
        let Self { requests, stop, server } = self;
        // Requests that wait for an acknowledgement are answered with 503.
        drop(requests);
        let _ignored = stop.send(());
        let _ignored = server.await;
    }
}

/// Accepts connections until `stopped`, then waits for pending responses.
async fn accept(listener: TcpListener, state: Arc<State>, mut stopped: oneshot::Receiver<()>) {
    let (permits, connections) = (Arc::new(Semaphore::new(MAX_CONNECTIONS)), GracefulShutdown::new());
    let next = async || {
        let permit = permits.clone().acquire_owned().await.ok()?;
        Some((listener.accept().await, permit))
    };
    loop {
        let accepted = tokio::select! {
            _ = &mut stopped => break,
            accepted = next() => accepted,
        };
        let (stream, permit) = match accepted {
            None => break,
            Some((Ok((stream, _)), permit)) => (stream, permit),
            Some((Err(_), _)) => {
                // Accepting usually fails because the process has too many open files, so a later attempt may succeed.
                tokio::time::sleep(ACCEPT_RETRY_PAUSE).await;
                continue;
            }
        };
        let state = state.clone();
        let service = service_fn(move |request| {
            let state = state.clone();
            async move { Ok::<_, Infallible>(respond(request, &state).await) }
        });
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(READ_TIMEOUT).max_buf_size(MAX_HEAD);
        let connection = connections.watch(http.serve_connection(TokioIo::new(stream), service));
        tokio::spawn(async move {
            // An error of a connection concerns only the client of the connection.
            let _ignored = connection.await;
            drop(permit);
        });
    }
    drop(listener);
    let _ignored = timeout(SHUTDOWN_TIMEOUT, connections.shutdown()).await;
}

async fn respond(request: Request<Incoming>, state: &State) -> Response<Full<Bytes>> {
    if request.method() != Method::POST {
        let mut response = response(StatusCode::METHOD_NOT_ALLOWED, "webhooks are sent by POST");
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
        return response;
    }
    let (head, body) = request.into_parts();
    match timeout(READ_TIMEOUT, Limited::new(body, MAX_BODY).collect()).await {
        Err(_) => response(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time"),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            response(StatusCode::PAYLOAD_TOO_LARGE, "the body is larger than any event")
        }
        Ok(Err(_)) => response(StatusCode::BAD_REQUEST, "the body cannot be read"),
        Ok(Ok(body)) => receive(&head.headers, &body.to_bytes(), state).await,
    }
}

/// Verifies a request, passes it to the consumer, and answers when the consumer has acknowledged it.
async fn receive(headers: &HeaderMap, body: &[u8], state: &State) -> Response<Full<Bytes>> {
    let result = state.verifier.verify(headers, body, clock::now()).and_then(|signed| signed.event());
    let (acknowledged, acknowledgement) = oneshot::channel();
    let request = ReceivedRequest {
        id: headers.get(ID).map(|id| String::from_utf8_lossy(id.as_bytes()).into_owned()),
        body: serde_json::from_slice(body).unwrap_or_else(|_| String::from_utf8_lossy(body).into()),
        problem: result.err(),
        acknowledged,
    };
    let (problem, signed) = (request.problem, request.is_signed());
    if state.requests.send(request).await.is_err() || acknowledgement.await.is_err() {
        return response(StatusCode::SERVICE_UNAVAILABLE, "the receiver is shutting down");
    }
    match problem {
        None => response(StatusCode::OK, "received"),
        Some(problem) if signed => response(StatusCode::BAD_REQUEST, &problem.to_string()),
        Some(problem) => response(StatusCode::UNAUTHORIZED, &problem.to_string()),
    }
}

fn response(status: StatusCode, text: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text.to_owned())));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}
