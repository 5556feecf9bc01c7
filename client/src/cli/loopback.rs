//! An HTTP/1.1 server on 127.0.0.1 that a command runs for other programs on this machine.
//!
//! Every user of this machine can connect, so bodies, heads, the number of connections and the durations of reads are limited.

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::{
    Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{ALLOW, CONTENT_TYPE, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
};
use std::{convert::Infallible, io, net::Ipv4Addr, sync::Arc, time::Duration};
use tokio::{
    net::TcpListener,
    sync::{Semaphore, oneshot},
    task::JoinHandle,
    time::timeout,
};

/// The largest head of a request, in bytes.
const MAX_HEAD: usize = 32 * 1024;

const MAX_CONNECTIONS: usize = 256;

/// The timeout for a head, and for a body. All clients are on this machine, so it can be short; without it, another user could hold
/// connections open.
const READ_TIMEOUT: Duration = Duration::from_secs(2);

/// The pause after a connection could not be accepted.
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(100);

/// The timeout for pending responses when the server stops.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// A bound port that accepts no connections yet.
pub struct BoundServer {
    listener: TcpListener,
    port: u16,
}

/// A running server. It ends with the process, or earlier with [`RunningServer::close`].
pub struct RunningServer {
    stop: oneshot::Sender<()>,
    server: JoinHandle<()>,
}

impl BoundServer {
    /// Binds a port of loopback; 0 is any free port.
    pub async fn bind(port: u16) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        let port = listener.local_addr()?.port();
        Ok(Self { listener, port })
    }

    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Starts to accept connections, and calls `respond` for each request.
    pub fn start<Respond, Responding>(self, respond: Respond) -> RunningServer
    where
        Respond: Fn(Request<Incoming>) -> Responding + Clone + Send + 'static,
        Responding: Future<Output = Response<Full<Bytes>>> + Send + 'static,
    {
        let (stop, stopped) = oneshot::channel();
        RunningServer { stop, server: tokio::spawn(accept(self.listener, respond, stopped)) }
    }
}

impl RunningServer {
    /// Stops accepting connections, and waits a short time for pending responses.
    pub async fn close(self) {
        let Self { stop, server } = self;
        let _ignored = stop.send(());
        let _ignored = server.await;
    }
}

/// Accepts connections until `stopped`, then waits for pending responses.
async fn accept<Respond, Responding>(listener: TcpListener, respond: Respond, mut stopped: oneshot::Receiver<()>)
where
    Respond: Fn(Request<Incoming>) -> Responding + Clone + Send + 'static,
    Responding: Future<Output = Response<Full<Bytes>>> + Send + 'static,
{
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let connections = GracefulShutdown::new();
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
        let respond = respond.clone();
        let service = service_fn(move |request| {
            let response = respond(request);
            async move { Ok::<_, Infallible>(response.await) }
        });
        let mut http = http1::Builder::new();
        // Each connection has one request. The response fits into the buffers of the system, so slow readers delay nothing.
        http.keep_alive(false);
        http.timer(TokioTimer::new()).header_read_timeout(READ_TIMEOUT).max_buf_size(MAX_HEAD);
        let connection = connections.watch(http.serve_connection(TokioIo::new(stream), service));
        tokio::spawn(async move {
            // An error of a connection concerns only its client, so we ignore it.
            let _ignored = connection.await;
            drop(permit);
        });
    }
    drop(listener);
    let _ignored = timeout(SHUTDOWN_TIMEOUT, connections.shutdown()).await;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    #[error("the body is too large")]
    TooLarge,
    #[error("the body did not arrive in time")]
    TooSlow,
    #[error("the body cannot be read")]
    Unreadable,
}

impl BodyError {
    pub const fn status(self) -> StatusCode {
        match self {
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::TooSlow => StatusCode::REQUEST_TIMEOUT,
            Self::Unreadable => StatusCode::BAD_REQUEST,
        }
    }
}

/// Reads a body of at most `max` bytes.
pub async fn read_body(body: Incoming, max: usize) -> Result<Bytes, BodyError> {
    match timeout(READ_TIMEOUT, Limited::new(body, max).collect()).await {
        Err(_) => Err(BodyError::TooSlow),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(BodyError::TooLarge),
        Ok(Err(_)) => Err(BodyError::Unreadable),
        Ok(Ok(body)) => Ok(body.to_bytes()),
    }
}

pub fn text_response(status: StatusCode, text: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text.to_owned())));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

/// A response to a request with another method than the `allowed` one.
pub fn method_not_allowed(allowed: &'static str, text: &str) -> Response<Full<Bytes>> {
    let mut response = text_response(StatusCode::METHOD_NOT_ALLOWED, text);
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    response
}
