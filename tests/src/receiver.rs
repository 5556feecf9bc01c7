//! Webhook receivers on loopback: they send the replies that a test configures and record every request.
//!
//! The receivers implement the part of HTTP/1.1 that a webhook sender needs, because a receiver must be able to send a reply
//! partly, slowly, endlessly or not at all. `connection` serves one connection, `request` is the recorded request.

mod connection;
mod request;

pub use request::Received;

use crate::{process::eventually, tls};
use countersign_process::{Clock, SystemClock};
use std::{
    collections::{HashMap, HashSet},
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};
use tokio::{
    net::{TcpListener, TcpSocket},
    sync::watch,
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;

/// The reply to a request.
#[derive(Debug, Clone)]
pub enum Reply {
    /// A status without a body.
    Status(u16),
    /// Status, headers and body.
    Full(u16, Vec<(&'static str, String)>, String),
    /// Sends another reply after a delay.
    Delayed(Duration, Box<Self>),
    /// Sends no reply and keeps the connection open.
    Never,
    /// Waits until [`Receiver::set_reply`] sets another reply, and sends the new reply.
    Pending,
    /// Closes the connection without a reply.
    Close,
    /// Sends status 200 and part of the body, then closes the connection.
    Truncated,
    /// Sends the headers of a 200 response, one byte per second.
    SlowHeaders,
    /// Sends the headers of a 200 response at once, and the body one byte per second.
    SlowBody,
    /// Sends a status and an endless body.
    Endless(u16),
}

impl Reply {
    /// A redirect to a URL.
    pub fn redirect(status: u16, to: &str) -> Self {
        Self::Full(status, vec![("location", to.to_owned())], String::new())
    }

    /// An error status with `Retry-After`.
    pub fn retry_after(status: u16, when: &str) -> Self {
        Self::Full(status, vec![("retry-after", when.to_owned())], String::new())
    }
}

/// Chooses the reply from the request and the number of earlier requests with the same `webhook-id`.
type ReplyFn = Box<dyn Fn(&Received, usize) -> Reply + Send>;

/// A running receiver.
pub struct Receiver {
    /// URL of the receiver.
    pub url: String,
    port: u16,
    shared: Arc<Shared>,
    _task: JoinSet<()>,
}

struct Shared {
    reply_fn: Mutex<ReplyFn>,
    /// Notified when the reply changes.
    changes: watch::Sender<()>,
    log: Mutex<Log>,
    connections: AtomicUsize,
    open: AtomicUsize,
    max_open_connections: AtomicUsize,
    endless_bytes_sent: AtomicU64,
}

#[derive(Default)]
struct Log {
    received: Vec<Received>,
    requests_by_id: HashMap<String, usize>,
    accepted: HashSet<String>,
    disconnects: Vec<Duration>,
}

impl Receiver {
    /// Starts a receiver with one reply for all requests.
    pub async fn start(reply: Reply) -> Self {
        Self::start_with(move |_, _| reply.clone()).await
    }

    /// Starts a receiver that responds 200.
    pub async fn start_ok() -> Self {
        Self::start(Reply::Status(200)).await
    }

    /// Starts a receiver that chooses the reply from the request and the number of earlier requests with the same
    /// `webhook-id`.
    pub async fn start_with(reply_fn: impl Fn(&Received, usize) -> Reply + Send + 'static) -> Self {
        Self::serve(Ipv4Addr::LOCALHOST, None, Box::new(reply_fn)).await
    }

    /// Starts a receiver that responds 200 and listens on all addresses of the machine.
    pub async fn on_all_addresses() -> Self {
        Self::serve(Ipv4Addr::UNSPECIFIED, None, Box::new(|_, _| Reply::Status(200))).await
    }

    /// Starts a receiver that responds 200 over TLS, and returns the receiver with the PEM of its certificate.
    pub async fn start_tls() -> (Self, String) {
        let (acceptor, certificate) = tls::self_signed();
        let receiver = Self::serve(Ipv4Addr::LOCALHOST, Some(acceptor), Box::new(|_, _| Reply::Status(200))).await;
        (receiver, certificate)
    }

    async fn serve(address: Ipv4Addr, tls: Option<TlsAcceptor>, reply_fn: ReplyFn) -> Self {
        let listener = TcpListener::bind((address, 0)).await.expect("a port is free");
        let scheme = if tls.is_some() { "https" } else { "http" };
        let port = listener.local_addr().expect("the socket is bound").port();
        let shared = Arc::new(Shared {
            reply_fn: Mutex::new(reply_fn),
            changes: watch::Sender::new(()),
            log: Mutex::default(),
            connections: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
            max_open_connections: AtomicUsize::new(0),
            endless_bytes_sent: AtomicU64::new(0),
        });
        let task = JoinSet::from_iter([accept(listener, tls, shared.clone())]);
        Self { url: format!("{scheme}://127.0.0.1:{port}/hook"), port, shared, _task: task }
    }

    /// Port of the receiver.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Sets the reply to all later requests.
    pub fn set_reply(&self, reply: Reply) {
        *self.shared.reply_fn.lock().expect("the lock is not poisoned") = Box::new(move |_, _| reply.clone());
        self.shared.changes.send_replace(());
    }

    /// All requests so far, in order of arrival.
    pub fn received(&self) -> Vec<Received> {
        self.shared.log().received.clone()
    }

    /// The requests with events of this kind.
    pub fn of_kind(&self, kind: &str) -> Vec<Received> {
        self.received().into_iter().filter(|request| request.json()["event"] == kind).collect()
    }

    /// Number of requests.
    pub fn count(&self) -> usize {
        self.shared.log().received.len()
    }

    /// Number of distinct events.
    pub fn events(&self) -> usize {
        self.shared.log().requests_by_id.len()
    }

    /// Number of distinct events to which the receiver responded with 200 or 204.
    pub fn accepted(&self) -> usize {
        self.shared.log().accepted.len()
    }

    /// Waits for this number of requests and returns all.
    pub async fn wait_for_requests(&self, count: usize) -> Vec<Received> {
        let condition = format!("{} receives {count} requests", self.url);
        let requests_when_received = async || (self.count() >= count).then(|| self.received());
        eventually(&condition, requests_when_received, || {
            format!("received {}: {:#?}", self.count(), self.received().last())
        })
        .await
    }

    /// Waits for a request with the event of this id.
    pub async fn wait_for_event(&self, id: &str) {
        let received = async || self.received().iter().any(|request| request.id() == id).then_some(());
        eventually("the event is delivered", received, || format!("received {:#?}", self.received())).await;
    }

    /// Times since boot at which senders closed a connection without a complete reply.
    pub fn disconnects(&self) -> Vec<Duration> {
        self.shared.log().disconnects.clone()
    }

    /// Number of connections ever accepted.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(SeqCst)
    }

    /// Number of open connections.
    pub fn open_connections(&self) -> usize {
        self.shared.open.load(SeqCst)
    }

    /// The most connections that were open at the same time.
    pub fn max_open_connections(&self) -> usize {
        self.shared.max_open_connections.load(SeqCst)
    }

    /// Bytes of endless bodies sent.
    pub fn endless_bytes_sent(&self) -> u64 {
        self.shared.endless_bytes_sent.load(SeqCst)
    }
}

impl Shared {
    fn log(&self) -> std::sync::MutexGuard<'_, Log> {
        self.log.lock().expect("the lock is not poisoned")
    }

    /// Stores a request. Returns the number of earlier requests with the same `webhook-id`.
    fn store(&self, received: &Received) -> usize {
        let mut log = self.log();
        let count = log.requests_by_id.entry(received.id().to_owned()).or_default();
        let earlier = *count;
        *count += 1;
        log.received.push(received.clone());
        earlier
    }

    /// The currently configured reply to a request.
    fn reply(&self, received: &Received, earlier: usize) -> Reply {
        let reply = (self.reply_fn.lock().expect("the lock is not poisoned"))(received, earlier);
        if matches!(reply, Reply::Status(200 | 204)) {
            self.log().accepted.insert(received.id().to_owned());
        }
        reply
    }

    fn record_disconnect(&self) {
        self.log().disconnects.push(SystemClock.since_boot());
    }
}

async fn accept(listener: TcpListener, tls: Option<TlsAcceptor>, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        while connections.try_join_next().is_some() {}
        let (shared, tls) = (shared.clone(), tls.clone());
        connections.spawn(async move {
            shared.connections.fetch_add(1, SeqCst);
            shared.max_open_connections.fetch_max(shared.open.fetch_add(1, SeqCst) + 1, SeqCst);
            match tls {
                None => connection::serve(stream, &shared).await,
                Some(tls) => {
                    if let Ok(stream) = tls.accept(stream).await {
                        connection::serve(stream, &shared).await;
                    }
                }
            }
            shared.open.fetch_sub(1, SeqCst);
        });
    }
}

/// A loopback port that refuses connections, because its socket is bound but does not listen.
pub struct RefusingPort {
    address: SocketAddr,
    _bound: TcpSocket,
}

impl RefusingPort {
    /// Binds a free port.
    pub fn new() -> Self {
        let bound = TcpSocket::new_v4().expect("a socket can be created");
        bound.bind((Ipv4Addr::LOCALHOST, 0).into()).expect("loopback has free ports");
        Self { address: bound.local_addr().expect("the socket is bound"), _bound: bound }
    }

    /// A URL at this port.
    pub fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }
}

impl Default for RefusingPort {
    fn default() -> Self {
        Self::new()
    }
}
