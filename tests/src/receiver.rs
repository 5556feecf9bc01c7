//! Receivers of webhooks on loopback: they answer as a test says, and keep every request as it came.
//!
//! Spoken here is as much of HTTP/1.1 as a sender of webhooks needs, by hand: a receiver must be able to answer
//! half, slowly, without end, or not at all. `connection` is one peer's way through it, `request` is what is kept.

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

/// How a request is answered.
#[derive(Debug, Clone)]
pub enum Reply {
    /// With a status and nothing else.
    Status(u16),
    /// With a status, headers and a body.
    Full(u16, Vec<(&'static str, String)>, String),
    /// As the other one, after a while.
    After(Duration, Box<Self>),
    /// Not at all: the connection stays open.
    Never,
    /// Not until [`Receiver::be`] sets another reply, and then with that.
    Held,
    /// By hanging up.
    Close,
    /// With 200 and half of a body; then it hangs up.
    Truncated,
    /// With the head of a 200, one byte a second.
    SlowHeaders,
    /// With the head of a 200 at once, and its body one byte a second.
    SlowBody,
    /// With a status and a body that does not end.
    Endless(u16),
}

impl Reply {
    /// A redirect to a URL.
    pub fn redirect(status: u16, to: &str) -> Self {
        Self::Full(status, vec![("location", to.to_owned())], String::new())
    }

    /// A refusal that says when to come back.
    pub fn retry_after(status: u16, when: &str) -> Self {
        Self::Full(status, vec![("retry-after", when.to_owned())], String::new())
    }
}

/// What is said to a request that came so many times before, by its `webhook-id`.
type Manner = Box<dyn Fn(&Received, usize) -> Reply + Send>;

/// A running receiver.
pub struct Receiver {
    /// Where it receives.
    pub url: String,
    shared: Arc<Shared>,
    task: tokio::task::JoinHandle<()>,
}

struct Shared {
    manner: Mutex<Manner>,
    /// Sent whenever the manner changes.
    changes: watch::Sender<()>,
    log: Mutex<Log>,
    connections: AtomicUsize,
    open: AtomicUsize,
    max_open: AtomicUsize,
    sent: AtomicU64,
}

#[derive(Default)]
struct Log {
    received: Vec<Received>,
    times: HashMap<String, usize>,
    taken: HashSet<String>,
    disconnects: Vec<Duration>,
}

impl Receiver {
    /// Starts one that answers everything alike.
    pub async fn start(reply: Reply) -> Self {
        Self::start_with(move |_, _| reply.clone()).await
    }

    /// Starts one that answers 200.
    pub async fn good() -> Self {
        Self::start(Reply::Status(200)).await
    }

    /// Starts one that looks at each request, and at how often its `webhook-id` came before.
    pub async fn start_with(manner: impl Fn(&Received, usize) -> Reply + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has free ports");
        let url = format!("http://{}/hook", listener.local_addr().expect("it is bound"));
        Self::serve(listener, None, url, Box::new(manner))
    }

    /// Starts one that answers 200, on all addresses of this machine.
    pub async fn on_all_addresses() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).await.expect("a free port");
        let url = format!("http://127.0.0.1:{}/hook", listener.local_addr().expect("it is bound").port());
        Self::serve(listener, None, url, Box::new(|_, _| Reply::Status(200)))
    }

    /// Starts one that answers 200 and speaks TLS; gives the PEM of the certificate that vouches for it.
    pub async fn start_tls() -> (Self, String) {
        let (acceptor, certificate) = tls::self_signed();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has free ports");
        let url = format!("https://{}/hook", listener.local_addr().expect("it is bound"));
        (Self::serve(listener, Some(acceptor), url, Box::new(|_, _| Reply::Status(200))), certificate)
    }

    fn serve(listener: TcpListener, tls: Option<TlsAcceptor>, url: String, manner: Manner) -> Self {
        let shared = Arc::new(Shared {
            manner: Mutex::new(manner),
            changes: watch::Sender::new(()),
            log: Mutex::default(),
            connections: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
            max_open: AtomicUsize::new(0),
            sent: AtomicU64::new(0),
        });
        let task = tokio::spawn(accept(listener, tls, shared.clone()));
        Self { url, shared, task }
    }

    /// The port on which it listens.
    pub fn port(&self) -> u16 {
        let (_, port) = self.url.rsplit_once(':').expect("the URL has a port");
        port.trim_end_matches("/hook").parse().expect("a port")
    }

    /// How it answers from now on.
    pub fn set_reply(&self, reply: Reply) {
        *self.shared.manner.lock().expect("no panic") = Box::new(move |_, _| reply.clone());
        self.shared.changes.send_replace(());
    }

    /// All requests so far, in the order in which they came.
    pub fn received(&self) -> Vec<Received> {
        self.shared.log().received.clone()
    }

    /// The requests of one kind of event.
    pub fn of_kind(&self, kind: &str) -> Vec<Received> {
        self.received().into_iter().filter(|one| one.json()["event"] == kind).collect()
    }

    /// How many requests came.
    pub fn count(&self) -> usize {
        self.shared.log().received.len()
    }

    /// How many different events came.
    pub fn events(&self) -> usize {
        self.shared.log().times.len()
    }

    /// How many different events were answered with 200 or 204.
    pub fn taken(&self) -> usize {
        self.shared.log().taken.len()
    }

    /// Waits until so many requests came, and gives all.
    pub async fn until(&self, count: usize) -> Vec<Received> {
        let what = format!("{} gets {count} requests", self.url);
        let enough = async || (self.count() >= count).then(|| self.received());
        eventually(&what, enough, || format!("it got {}: {:#?}", self.count(), self.received().last())).await
    }

    /// When those who were left without an answer, or got a slow or endless one, hung up.
    pub fn disconnects(&self) -> Vec<Duration> {
        self.shared.log().disconnects.clone()
    }

    /// How many connections were ever made.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(SeqCst)
    }

    /// How many connections are open.
    pub fn open(&self) -> usize {
        self.shared.open.load(SeqCst)
    }

    /// How many connections were open at once, at most.
    pub fn max_open(&self) -> usize {
        self.shared.max_open.load(SeqCst)
    }

    /// Bytes of endless answers that went out.
    pub fn sent(&self) -> u64 {
        self.shared.sent.load(SeqCst)
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Shared {
    fn log(&self) -> std::sync::MutexGuard<'_, Log> {
        self.log.lock().expect("no panic")
    }

    /// Stores a request. Returns the number of earlier requests with its `webhook-id`.
    fn store(&self, received: &Received) -> usize {
        let mut log = self.log();
        let times = log.times.entry(received.id().to_owned()).or_default();
        let before = *times;
        *times += 1;
        log.received.push(received.clone());
        before
    }

    /// The reply to a request, as the receiver is set now.
    fn reply(&self, received: &Received, before: usize) -> Reply {
        let reply = (self.manner.lock().expect("no panic"))(received, before);
        if matches!(reply, Reply::Status(200 | 204)) {
            self.log().taken.insert(received.id().to_owned());
        }
        reply
    }

    fn gave_up(&self) {
        self.log().disconnects.push(SystemClock.since_boot());
    }
}

async fn accept(listener: TcpListener, tls: Option<TlsAcceptor>, shared: Arc<Shared>) {
    let mut peers = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        while peers.try_join_next().is_some() {}
        let (shared, tls) = (shared.clone(), tls.clone());
        peers.spawn(async move {
            shared.connections.fetch_add(1, SeqCst);
            shared.max_open.fetch_max(shared.open.fetch_add(1, SeqCst) + 1, SeqCst);
            match tls {
                None => connection::attend(stream, &shared).await,
                Some(tls) => {
                    if let Ok(stream) = tls.accept(stream).await {
                        connection::attend(stream, &shared).await;
                    }
                }
            }
            shared.open.fetch_sub(1, SeqCst);
        });
    }
}

/// An address of loopback that refuses connections for as long as this lives, since nobody else can listen there.
pub struct RefusingPort {
    address: SocketAddr,
    _bound: TcpSocket,
}

impl RefusingPort {
    /// Takes a free port and does not listen.
    pub fn new() -> Self {
        let bound = TcpSocket::new_v4().expect("a socket");
        bound.bind((Ipv4Addr::LOCALHOST, 0).into()).expect("loopback has free ports");
        Self { address: bound.local_addr().expect("it is bound"), _bound: bound }
    }

    /// Where nobody listens.
    pub fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }
}

impl Default for RefusingPort {
    fn default() -> Self {
        Self::new()
    }
}
