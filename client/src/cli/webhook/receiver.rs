//! A small HTTP/1.1 server on loopback that receives webhooks, each believed or not.
//!
//! What arrives is handed to whoever runs it, and answered only when that has been told: an event that nobody saw is
//! sent again. Anybody on this machine may connect, so bodies, heads, connections and patience have bounds.

use crate::cli::Failure;
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

/// Bytes of a body, at the most: events are far smaller.
const LARGEST_BODY: usize = 256 * 1024;

/// Bytes of a head, at the most.
const LARGEST_HEAD: usize = 32 * 1024;

/// Connections at once.
const CONNECTIONS: usize = 32;

/// How long a head or a body may take to arrive.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long it waits when nobody can be let in.
const PAUSE: Duration = Duration::from_millis(100);

/// How long answers may take to leave at the end.
const FAREWELL: Duration = Duration::from_secs(2);

/// A request that could be an event.
pub struct Arrival {
    /// The event's id, as the request has it.
    pub id: Option<String>,
    /// What it says.
    pub body: Value,
    /// Why it is not believed, if it is not.
    pub problem: Option<WebhookError>,
    told: oneshot::Sender<()>,
}

/// A port on which nothing is answered yet.
pub struct Receiver {
    listener: TcpListener,
    port: u16,
}

/// What is received, until it is closed.
pub struct Received {
    arrivals: mpsc::Receiver<Arrival>,
    stop: oneshot::Sender<()>,
    accepting: JoinHandle<()>,
}

/// What every connection needs.
struct Counter {
    verifier: Verifier,
    arrivals: mpsc::Sender<Arrival>,
}

impl Arrival {
    /// Whether the signature is good, whatever was signed.
    pub const fn is_signed(&self) -> bool {
        match self.problem {
            None | Some(WebhookError::NoEvent) => true,
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

    /// It was told, and may be answered now.
    pub fn told(self) {
        let _gone = self.told.send(());
    }
}

impl Receiver {
    /// Takes a port of this machine; 0 is any that is free.
    pub async fn bind(port: u16) -> Result<Self, Failure> {
        let bound = async {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
            let port = listener.local_addr()?.port();
            io::Result::Ok(Self { listener, port })
        };
        bound.await.map_err(|error| {
            Failure::Failed(format!("port {port}: {error}\nNext: another --port, or none for any that is free"))
        })
    }

    /// Where it is.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/", self.port)
    }

    /// Begins to answer.
    pub fn open(self, verifier: Verifier) -> Received {
        let (sender, arrivals) = mpsc::channel(1);
        let (stop, stopped) = oneshot::channel();
        let counter = Arc::new(Counter { verifier, arrivals: sender });
        Received { arrivals, stop, accepting: tokio::spawn(accept(self.listener, counter, stopped)) }
    }
}

impl Received {
    /// The next request that could be an event.
    pub async fn next(&mut self) -> Option<Arrival> {
        self.arrivals.recv().await
    }

    /// Takes nothing more, and lets what was told be answered.
    pub async fn close(self) {
        let Self { arrivals, stop, accepting } = self;
        // Who waits to be told hears that nobody will.
        drop(arrivals);
        let _ended = stop.send(());
        let _ended = accepting.await;
    }
}

/// Accepts until it is told to stop, and then waits for the answers that are due.
async fn accept(listener: TcpListener, counter: Arc<Counter>, mut stopped: oneshot::Receiver<()>) {
    let (places, connections) = (Arc::new(Semaphore::new(CONNECTIONS)), GracefulShutdown::new());
    let next = async || {
        let place = places.clone().acquire_owned().await.ok()?;
        Some((listener.accept().await, place))
    };
    loop {
        let accepted = tokio::select! {
            _ = &mut stopped => break,
            accepted = next() => accepted,
        };
        let (stream, place) = match accepted {
            None => break,
            Some((Ok((stream, _)), place)) => (stream, place),
            Some((Err(_), _)) => {
                // There are no more files, mostly: it passes, but not at once.
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let counter = counter.clone();
        let service = service_fn(move |request| {
            let counter = counter.clone();
            async move { Ok::<_, Infallible>(answer(request, &counter).await) }
        });
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(PATIENCE).max_buf_size(LARGEST_HEAD);
        let connection = connections.watch(http.serve_connection(TokioIo::new(stream), service));
        tokio::spawn(async move {
            // How it ended is the other side's concern.
            let _ended = connection.await;
            drop(place);
        });
    }
    drop(listener);
    let _late = timeout(FAREWELL, connections.shutdown()).await;
}

async fn answer(request: Request<Incoming>, counter: &Counter) -> Response<Full<Bytes>> {
    if request.method() != Method::POST {
        let mut response = said(StatusCode::METHOD_NOT_ALLOWED, "webhooks are sent by POST");
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
        return response;
    }
    let (head, body) = request.into_parts();
    match timeout(PATIENCE, Limited::new(body, LARGEST_BODY).collect()).await {
        Err(_) => said(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time"),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            said(StatusCode::PAYLOAD_TOO_LARGE, "no event is as large as this body")
        }
        Ok(Err(_)) => said(StatusCode::BAD_REQUEST, "the body cannot be read"),
        Ok(Ok(body)) => receive(&head.headers, &body.to_bytes(), counter).await,
    }
}

/// Judges what arrived, hands it on, and answers when it was told.
async fn receive(headers: &HeaderMap, body: &[u8], counter: &Counter) -> Response<Full<Bytes>> {
    let judged = counter.verifier.verify(headers, body, clock::now()).and_then(|signed| signed.event());
    let (told, heard) = oneshot::channel();
    let arrival = Arrival {
        id: headers.get(ID).map(|id| String::from_utf8_lossy(id.as_bytes()).into_owned()),
        body: serde_json::from_slice(body).unwrap_or_else(|_| String::from_utf8_lossy(body).into()),
        problem: judged.err(),
        told,
    };
    let (problem, signed) = (arrival.problem, arrival.is_signed());
    if counter.arrivals.send(arrival).await.is_err() || heard.await.is_err() {
        return said(StatusCode::SERVICE_UNAVAILABLE, "nobody listens any more");
    }
    match problem {
        None => said(StatusCode::OK, "received"),
        Some(problem) if signed => said(StatusCode::BAD_REQUEST, &problem.to_string()),
        Some(problem) => said(StatusCode::UNAUTHORIZED, &problem.to_string()),
    }
}

fn said(status: StatusCode, text: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text.to_owned())));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}
