//! Serves HTTP on a port. Invariants: every wait for a client has an end, and the number of connections has a bound. The server waits
//! for a client at most this long:
//!
//! | Wait for | At most |
//! |---|---|
//! | the TLS handshake and the first complete request head | [`PortSettings::first_request_timeout`] |
//! | after the work on a request: the end of its response and the complete head of the next | [`PortSettings::idle_timeout`] |
//! | the answer to an HTTP/2 keep-alive ping | [`CLIENT_TIMEOUT`] |
//! | the next part of a request, or space for a response | [`STALL_TIMEOUT`] |
//!
//! [`connections`] decides which connection closes when there are too many.

mod batched_writes;
mod connections;
mod descriptors;
mod listener;
mod memory;
mod messages;
mod metrics;
mod network;
mod rare_line;
mod service;
mod tls;

pub use connections::{CloseReason, ConnectionCaps};
pub use descriptors::{RESERVED_DESCRIPTORS, fit_to_descriptors, raise_descriptor_limit};
pub use listener::{ConnectionAddresses, Listener};
pub use memory::{ReservedMemory, SharedMemory, head_size};
pub use messages::MessageLimits;
pub use metrics::{ConnectionMetrics, PortMetrics};
pub use network::Network;
pub use tls::TlsOnly;

use crate::{Shutdown, shutdown::DRAIN_TIMEOUT};
use axum::Router;
use batched_writes::BatchedWrites;
use connections::{Connections, OpenConnection};
use futures_util::FutureExt as _;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
};
use ipnet::IpNet;
use listener::Acceptor;
use rare_line::RareLine;
use service::ConnectionService;
use std::{
    error::Error,
    io,
    net::{IpAddr, SocketAddr},
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{sleep, timeout},
};
use tokio_io_timeout::TimeoutWriter;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// How long a client may take to answer a keep-alive ping, and the time between two pings.
pub const CLIENT_TIMEOUT: Duration = Duration::from_secs(20);

/// How long a client may neither send the next part of a request nor take a part of what the server writes.
pub const STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// The usual [`PortSettings::linger`].
pub const LINGER: Duration = Duration::from_millis(500);

/// How long an idle connection may take to end after the server began to close it. In HTTP/2, the client must answer a ping first.
const GRACEFUL_CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Prepares accepted connections for HTTP, for example by a TLS handshake.
pub trait Handshake<S>: Clone + Send + Sync + 'static {
    /// The stream of the HTTP connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Prepares a connection.
    fn handshake(&self, stream: S) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

/// Serves HTTP without TLS.
#[derive(Debug, Clone, Copy)]
pub struct PlainText;

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Handshake<S> for PlainText {
    type Stream = S;

    async fn handshake(&self, stream: S) -> io::Result<S> {
        Ok(stream)
    }
}

/// The limits of a port.
#[derive(Clone)]
pub struct PortSettings {
    /// The name of the port in logs and metrics.
    pub name: &'static str,
    /// The name of the setting that limits the connections, for log messages; `None` if the limit is fixed.
    pub connections_setting: Option<&'static str>,
    /// How many connections the port may have.
    pub caps: ConnectionCaps,
    /// Proxies in front of this port. Many clients share a proxy, so its connections do not count for one client.
    pub trusted_proxies: Vec<IpNet>,
    /// How long a client may take to send its first request.
    pub first_request_timeout: Duration,
    /// How long a connection may wait for the next request.
    pub idle_timeout: Duration,
    /// How long connections stay open after shutdown was requested, so that requests on their way are answered.
    pub linger: Duration,
    /// The limits of the HTTP protocols.
    pub protocol: ProtocolLimits,
    /// The limits of messages, if each request is one gRPC message.
    pub messages: Option<Arc<MessageLimits>>,
    /// The metrics of the connections.
    pub metrics: ConnectionMetrics,
}

/// The limits of the HTTP protocols.
#[derive(Debug, Clone, Copy)]
pub struct ProtocolLimits {
    /// Whether clients may use HTTP/1.1. HTTP/2 is always possible.
    pub allows_http1: bool,
    /// The maximum size of a request head in bytes.
    pub max_head_size: u32,
    /// The maximum number of concurrent HTTP/2 streams of a connection.
    pub max_streams: u32,
    /// Whether responses are long streams. If so, the work on a request lasts until its response ends, else until it begins.
    pub responses_last: bool,
    /// The HTTP/2 flow-control window of a connection and of each stream in bytes. This is how much the server buffers of requests that no
    /// handler reads. Handlers may hold more, because reading opens the window again.
    pub receive_window: u32,
}

/// Serves a port until shutdown is requested, and then answers the requests in progress, until the drain timeout at the latest.
pub async fn serve<L: Listener>(
    listener: L,
    handshake: impl Handshake<L::Stream>,
    routes: Router,
    settings: PortSettings,
    shutdown: Shutdown,
) -> io::Result<()> {
    let port = Arc::new(Port {
        connections: Arc::new(Connections::new(&settings)),
        settings,
        shutdown,
        abort: CancellationToken::new(),
        handshake_line: Mutex::default(),
    });
    let tasks = TaskTracker::new();
    let mut acceptor = Acceptor::new(listener, port.settings.name);
    let spawn = |(stream, addresses): (L::Stream, Option<ConnectionAddresses>)| {
        let peer = addresses.map(|addresses| addresses.peer.ip());
        if let Some(connection) = port.connections.admit(peer.filter(|peer| !port.is_trusted_proxy(*peer))) {
            let (port, handshake, routes) = (port.clone(), handshake.clone(), routes.clone());
            tasks.spawn(port.serve_connection(stream, handshake, routes, addresses, Arc::new(connection)));
        }
    };
    while let Some(accepted) = port.shutdown.run_until_requested(acceptor.accept(&port.connections)).await {
        spawn(accepted);
    }
    // Clients that connected before the socket closes are served, too.
    while let Some(accepted) = acceptor.accept(&port.connections).now_or_never() {
        spawn(accepted);
    }
    drop(acceptor);
    tasks.close();
    if timeout(DRAIN_TIMEOUT, tasks.wait()).await.is_err() {
        tracing::warn!(port = port.settings.name, connections = tasks.len(), "aborts connections that take too long");
        port.abort.cancel();
        tasks.wait().await;
    }
    Ok(())
}

/// What all connections of a port share.
struct Port {
    settings: PortSettings,
    connections: Arc<Connections>,
    shutdown: Shutdown,
    /// Cancelled at the drain timeout.
    abort: CancellationToken,
    /// When a failed handshake was logged.
    handshake_line: Mutex<RareLine>,
}

impl Port {
    fn is_trusted_proxy(&self, address: IpAddr) -> bool {
        self.settings.trusted_proxies.iter().any(|network| network.contains(&address.to_canonical()))
    }

    /// Serves a connection until it ends, or until the server must close it.
    async fn serve_connection<S, H: Handshake<S>>(
        self: Arc<Self>,
        stream: S,
        handshake: H,
        routes: Router,
        addresses: Option<ConnectionAddresses>,
        connection: Arc<OpenConnection>,
    ) {
        let service = ConnectionService {
            routes,
            addresses,
            connection: Arc::clone(&connection),
            messages: self.settings.messages.clone(),
            responses_last: self.settings.protocol.responses_last,
            shutdown: self.shutdown.clone(),
        };
        let idle = CancellationToken::new();
        tokio::select! {
            _ended = self.serve_http(stream, handshake, service, &idle) => {}
            () = self.wait_for_request(&connection, &idle) => {}
            () = self.wait_for_idle_at_shutdown(&connection) => {}
            () = connection.evicted() => {}
            () = self.abort.cancelled() => {}
        }
    }

    /// Serves HTTP until the connection ends. `None` if the handshake fails.
    async fn serve_http<S, H: Handshake<S>>(
        &self,
        stream: S,
        handshake: H,
        service: ConnectionService,
        idle: &CancellationToken,
    ) -> Option<()> {
        let handshake = handshake.handshake(stream).await;
        let peer = service.addresses.map(|addresses| addresses.peer);
        let stream = handshake.inspect_err(|error| self.log_failed_handshake(peer, error)).ok()?;
        let mut stream = TimeoutWriter::new(stream);
        stream.set_timeout(Some(STALL_TIMEOUT));
        let builder = http_builder(self.settings.protocol);
        let mut http = pin!(builder.serve_connection(TokioIo::new(BatchedWrites::new(stream)), service));
        let ended = tokio::select! {
            ended = &mut http => ended,
            () = self.must_close(idle) => {
                http.as_mut().graceful_shutdown();
                http.await
            }
        };
        // Other errors mean that the client has broken the protocol or the connection.
        if ended.is_err_and(|error| is_timeout(error.as_ref())) {
            self.connections.count_closed(CloseReason::StallTimeout);
        }
        Some(())
    }

    /// Logs why a client and this server do not agree on TLS, such as a certificate of an unknown authority. Other errors are lost
    /// connections, such as those of a load balancer that only tries whether the port is open.
    fn log_failed_handshake(&self, peer: Option<SocketAddr>, error: &io::Error) {
        let is_due = || self.handshake_line.lock().unwrap_or_else(PoisonError::into_inner).is_due();
        if error.kind() == io::ErrorKind::InvalidData && is_due() {
            tracing::info!(port = self.settings.name, ?peer, %error, "a TLS handshake failed");
        }
    }

    /// Waits until the server must close the connection: at shutdown, or when `idle` says that the client sends no more requests.
    async fn must_close(&self, idle: &CancellationToken) {
        let shutdown = async {
            self.shutdown.requested().await;
            sleep(self.settings.linger).await;
        };
        tokio::select! {
            () = shutdown => {}
            () = idle.cancelled() => {}
        }
    }

    /// Returns when the connection must be cut because the client sends no request. If the client has sent an earlier request,
    /// `idle` first lets the connection close gracefully.
    async fn wait_for_request(&self, connection: &OpenConnection, idle: &CancellationToken) {
        sleep(self.settings.first_request_timeout).await;
        if !connection.has_requested() {
            return self.connections.count_closed(CloseReason::FirstRequestTimeout);
        }
        loop {
            // During a request, the connection has not waited yet.
            let waited = connection.idle_for().unwrap_or_default();
            match self.settings.idle_timeout.checked_sub(waited) {
                Some(left) if !left.is_zero() => sleep(left).await,
                _ => break,
            }
        }
        self.connections.count_closed(CloseReason::IdleTimeout);
        idle.cancel();
        sleep(GRACEFUL_CLOSE_TIMEOUT).await;
        // The client may have sent a request before it knew that the connection closes.
        while connection.idle_for().is_none_or(|waited| waited < GRACEFUL_CLOSE_TIMEOUT) {
            sleep(LINGER).await;
        }
    }

    /// Returns when a graceful close after shutdown has had enough time, and no request is in progress.
    async fn wait_for_idle_at_shutdown(&self, connection: &OpenConnection) {
        self.shutdown.requested().await;
        sleep(self.settings.linger + GRACEFUL_CLOSE_TIMEOUT).await;
        while connection.idle_for().is_none() {
            sleep(LINGER).await;
        }
    }
}

fn http_builder(limits: ProtocolLimits) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    let head_size = usize::try_from(limits.max_head_size).unwrap_or(usize::MAX);
    // hyper's own timeout is off, because `wait_for_request` also limits the time for a request head.
    builder.http1().timer(TokioTimer::new()).header_read_timeout(None).max_buf_size(head_size);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(CLIENT_TIMEOUT)
        .keep_alive_timeout(CLIENT_TIMEOUT)
        .max_header_list_size(limits.max_head_size)
        .max_concurrent_streams(limits.max_streams)
        .initial_stream_window_size(limits.receive_window)
        .initial_connection_window_size(limits.receive_window);
    if limits.allows_http1 { builder } else { builder.http2_only() }
}

/// Whether the cause of an error is that a write took too long.
fn is_timeout(error: &(dyn Error + 'static)) -> bool {
    let timed_out = |error: &io::Error| error.kind() == io::ErrorKind::TimedOut;
    error.downcast_ref().is_some_and(timed_out) || error.source().is_some_and(is_timeout)
}

#[cfg(test)]
mod tests;
