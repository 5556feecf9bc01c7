//! Serves HTTP on a port. Every wait for a client has an end, and the number of connections has a bound.
//!
//! | Wait | End |
//! |---|---|
//! | TLS handshake and the first complete request head | [`PortSettings::first_request_timeout`] |
//! | the head of a further HTTP/1.1 request | [`CLIENT_TIMEOUT`] |
//! | the answer to an HTTP/2 keep-alive ping | [`CLIENT_TIMEOUT`] |
//! | the rest of a request, or space for a response | [`STALL_TIMEOUT`] per HTTP/2 stream and per connection |
//! | the end of a request or of a response in HTTP/2 | [`TAKE_TIMEOUT`] |
//! | the next request | [`PortSettings::idle_timeout`] |
//!
//! [`connections`] decides which connection closes when there are too many.

mod activity;
mod bodies;
mod connections;
mod descriptors;
mod listener;
mod memory;
mod messages;
mod metrics;
mod network;
mod streams;
mod tracking;

pub use connections::{CloseReason, ConnectionCaps};
pub use descriptors::{RESERVED_DESCRIPTORS, fit_to_descriptors, raise_descriptor_limit};
pub use listener::Listener;
pub use memory::{ReservedMemory, SharedMemory, Shares};
pub use messages::MessageLimits;
pub use metrics::{ConnectionMetrics, PortMetrics};
pub use network::Network;

use crate::{Shutdown, shutdown::DRAIN_TIMEOUT};
use activity::{Activity, WATCH_INTERVAL, Waiting};
use axum::Router;
use connections::{Connections, OpenConnection, PortNames};
use futures_util::FutureExt as _;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::conn::auto::Builder,
};
use ipnet::IpNet;
use listener::Acceptor;
use messages::MessageClient;
use std::{
    io,
    net::{IpAddr, SocketAddr},
    pin::pin,
    sync::Arc,
    time::Duration,
};
use streams::{StreamExecutor, StreamQueue, StreamTimeouts};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{MissedTickBehavior, interval, sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracking::{TrackedService, TrackedStream};

/// How long a client may take to send the head of a further request, or to answer a keep-alive ping.
pub const CLIENT_TIMEOUT: Duration = Duration::from_secs(20);

/// How long a client may neither send the rest of a request nor take a part of a response.
pub const STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a client may take to send a request and to take the response in HTTP/2, while the server waits for nothing else.
pub const TAKE_TIMEOUT: Duration = Duration::from_mins(2);

/// The usual [`PortSettings::linger`].
pub const LINGER: Duration = Duration::from_millis(500);

/// How long a connection without a request may take to end after the server began to close it gracefully: in HTTP/2, the client
/// must answer a ping.
const GRACEFUL_CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a connection with a request in progress stays open after its place was given to another one: long enough for
/// `GOAWAY`.
const YIELD_TIMEOUT: Duration = Duration::from_millis(200);

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
    /// The setting with the largest number of connections; `None` if that number is fixed.
    pub connections_setting: Option<&'static str>,
    /// The numbers of connections.
    pub caps: ConnectionCaps,
    /// Proxies, whose connections are counted only in total, because many clients share them.
    pub trusted_proxies: Vec<IpNet>,
    /// Whether clients resume their requests after the end of a connection. If so, and if no connection waits for its client, a
    /// new connection takes the place of one of a client with more connections.
    pub streams_resume: bool,
    /// How long a client may take to send its first request.
    pub first_request_timeout: Duration,
    /// How long a connection may wait for the next request.
    pub idle_timeout: Duration,
    /// How long connections stay open after shutdown was requested, so that a request that is on its way is answered.
    pub linger: Duration,
    /// The limits of the HTTP protocols.
    pub protocol: ProtocolLimits,
    /// The limits of messages, if each request is one gRPC message.
    pub messages: Option<MessageLimits>,
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
    /// Whether an HTTP/2 stream ends whose client stalls. Streams that last have limits of their own.
    pub ends_stalled_streams: bool,
    /// Whether the handlers answer without waiting for anything but the request. Then an HTTP/2 stream gets a task only if it does
    /// not end at once, and a handler that takes long delays the other streams of its connection.
    pub handlers_never_wait: bool,
    /// The HTTP/2 flow-control window of a connection and of each stream in bytes: what the server buffers for requests that it
    /// does not read. Handlers may hold more, because what they have read opens the window again.
    pub receive_window: u32,
}

/// Serves a port until shutdown is requested, and then answers the requests in progress, until the drain timeout at the
/// latest.
pub async fn serve<L: Listener>(
    listener: L,
    handshake: impl Handshake<L::Stream>,
    routes: Router,
    (settings, metrics): (PortSettings, ConnectionMetrics),
    shutdown: Shutdown,
) -> io::Result<()> {
    let names = PortNames { port: settings.name, setting: settings.connections_setting };
    let port = Arc::new(Port {
        connections: Arc::new(Connections::new(settings.caps, settings.streams_resume, names, metrics)),
        settings,
        shutdown,
        abort: CancellationToken::new(),
    });
    let tasks = TaskTracker::new();
    let mut acceptor = Acceptor::new(listener, port.settings.name);
    let serve = |(stream, peer): (L::Stream, Option<SocketAddr>)| {
        let address = peer.map(|peer| peer.ip()).filter(|address| !port.is_trusted_proxy(*address));
        if let Some(connection) = port.connections.admit(address) {
            let (port, handshake, routes) = (port.clone(), handshake.clone(), routes.clone());
            tasks.spawn(port.serve_connection(stream, handshake, (routes, peer), connection));
        }
    };
    while let Some(accepted) = port.shutdown.run_until_requested(acceptor.accept(&port.connections)).await {
        serve(accepted);
        port.connections.wait_for_evicted().await;
    }
    // Clients that connected before the socket closes are served, too.
    while let Some(accepted) = acceptor.accept(&port.connections).now_or_never() {
        serve(accepted);
    }
    drop(acceptor);
    tasks.close();
    if timeout(DRAIN_TIMEOUT, tasks.wait()).await.is_err() {
        tracing::warn!(
            port = port.settings.name,
            connections = tasks.len(),
            "aborts connections that did not end in time"
        );
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
        (routes, peer): (Router, Option<SocketAddr>),
        connection: OpenConnection,
    ) {
        let connection = Arc::new(connection);
        let activity = Arc::clone(&connection.activity);
        let serve = async {
            let stream = self.run_until_close(handshake.handshake(stream), &activity).await?.ok()?;
            let stream = TokioIo::new(TrackedStream { stream, activity: Arc::clone(&activity) });
            let message_client = |limits| Arc::new(MessageClient { limits, address: peer.map(|peer| peer.ip()) });
            let message_client = self.settings.messages.clone().map(message_client);
            let service = TrackedService { routes, connection: Arc::clone(&connection), peer, message_client };
            let streams = StreamQueue::default();
            let builder = http_builder(self.settings.protocol, &streams);
            let mut http = pin!(builder.serve_connection(stream, service));
            // The results do not matter: an error means that the client has broken the protocol or the connection.
            if self.run_until_close(streams.run(http.as_mut()), &activity).await.is_none() {
                http.as_mut().graceful_shutdown();
                let _ended = streams.run(http).await;
            }
            Some(())
        };
        let watch = async {
            self.wait_for_timeout(&activity).await;
        };
        let evicted = async {
            activity.evicted().await;
            if activity.is_yielding() {
                sleep(YIELD_TIMEOUT).await;
            }
        };
        tokio::select! {
            _ended = serve => {}
            () = watch => {}
            () = evicted => {}
            () = self.abort.cancelled() => {}
        }
    }

    /// Runs a phase of a connection. Returns `None` when the server must close the connection gracefully: at shutdown, or when the
    /// connection is idle for too long.
    async fn run_until_close<T>(&self, phase: impl Future<Output = T>, activity: &Activity) -> Option<T> {
        let shutdown = async {
            self.shutdown.requested().await;
            activity.set_closing();
            sleep(self.settings.linger).await;
        };
        tokio::select! {
            ended = phase => Some(ended),
            () = shutdown => None,
            () = activity.graceful_close_requested() => None,
        }
    }

    /// Waits until the client has exceeded a timeout, and counts which.
    async fn wait_for_timeout(&self, activity: &Activity) {
        let mut ticks = interval(WATCH_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.tick().await;
        let (mut age, mut is_closing, mut stopping_intervals) = (Duration::ZERO, false, 0);
        // The first of these intervals began before the shutdown.
        let stopping_timeout = self.settings.linger + GRACEFUL_CLOSE_TIMEOUT + WATCH_INTERVAL;
        loop {
            ticks.tick().await;
            age += WATCH_INTERVAL;
            if self.shutdown.is_requested() {
                stopping_intervals += 1;
            }
            let (waiting, quiet_intervals) = activity.observe();
            let waited = WATCH_INTERVAL * quiet_intervals;
            let idle_timeout = self.settings.idle_timeout;
            match waiting {
                Waiting::FirstRequest | Waiting::NextRequest
                    if WATCH_INTERVAL * stopping_intervals >= stopping_timeout =>
                {
                    return;
                }
                Waiting::FirstRequest if age >= self.settings.first_request_timeout => {
                    return self.connections.count_closed(CloseReason::FirstRequestTimeout);
                }
                Waiting::NextRequest if waited >= idle_timeout + GRACEFUL_CLOSE_TIMEOUT => return,
                Waiting::NextRequest if waited >= idle_timeout && !is_closing => {
                    is_closing = true;
                    self.connections.count_closed(CloseReason::IdleTimeout);
                    activity.request_graceful_close();
                }
                Waiting::RestOfHead if waited >= CLIENT_TIMEOUT => {
                    return self.connections.count_closed(CloseReason::StallTimeout);
                }
                Waiting::Client if waited >= STALL_TIMEOUT => {
                    return self.connections.count_closed(CloseReason::StallTimeout);
                }
                Waiting::FirstRequest
                | Waiting::NextRequest
                | Waiting::RestOfHead
                | Waiting::Client
                | Waiting::Server => {}
            }
        }
    }
}

fn http_builder(limits: ProtocolLimits, streams: &StreamQueue) -> Builder<StreamExecutor> {
    let timeouts = StreamTimeouts { stall: STALL_TIMEOUT, total: TAKE_TIMEOUT };
    let mut builder = Builder::new(StreamExecutor {
        timeouts: limits.ends_stalled_streams.then_some(timeouts),
        queue: limits.handlers_never_wait.then(|| streams.clone()),
    });
    let head_size = usize::try_from(limits.max_head_size).unwrap_or(usize::MAX);
    // hyper's timeout for a head would also end connections that are idle.
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

#[cfg(test)]
mod tests;
