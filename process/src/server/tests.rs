//! Tests of the server with real sockets.

use super::*;
use crate::telemetry::MetricFactory;
use axum::{
    body::{Body, Bytes},
    routing::{get, post},
};
use prometheus::{Registry, TextEncoder};
use std::{
    future::pending,
    io::ErrorKind,
    net::SocketAddr,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

/// A server with short timeouts.
struct TestServer {
    address: SocketAddr,
    registry: Registry,
    shutdown: Shutdown,
    task: JoinHandle<io::Result<()>>,
}

/// Settings with short timeouts.
pub fn settings(caps: ConnectionCaps, metrics: ConnectionMetrics) -> PortSettings {
    PortSettings {
        name: "test",
        connections_setting: None,
        caps,
        trusted_proxies: Vec::new(),
        first_request_timeout: Duration::from_secs(2),
        idle_timeout: Duration::from_secs(4),
        // Longer than the tests.
        linger: Duration::from_mins(10),
        protocol: ProtocolLimits {
            allows_http1: true,
            max_head_size: 16_384,
            max_streams: 8,
            responses_last: false,
            receive_window: 65_535,
        },
        messages: None,
        metrics,
    }
}

impl TestServer {
    async fn start(caps: ConnectionCaps, routes: Router) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        Self::start_on(listener, address, caps, routes)
    }

    fn start_on(listener: impl Listener, address: SocketAddr, caps: ConnectionCaps, routes: Router) -> Self {
        let (registry, shutdown) = (Registry::new(), Shutdown::default());
        let metrics = PortMetrics::new(&MetricFactory { registry: &registry, prefix: "test" }).unwrap().of_port("test");
        let task = tokio::spawn(serve(listener, PlainText, routes, settings(caps, metrics), shutdown.clone()));
        Self { address, registry, shutdown, task }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Whether the metrics contain this line.
    fn has_metric(&self, line: &str) -> bool {
        let text = TextEncoder::new().encode_to_string(&self.registry.gather()).unwrap();
        text.lines().any(|other| other == line)
    }
}

const CAPS: ConnectionCaps = ConnectionCaps { total: 64, per_client: 64, pending: 64 };

fn hello() -> Router {
    Router::new()
        .route("/", get(|| async { "hello" }))
        .route("/echo", post(|body: Bytes| async { body }))
        .route("/large", get(|| async { vec![b'x'; 64 << 20] }))
}

/// Sends bytes and returns all bytes that the server sends until it closes the connection.
async fn exchange(stream: &mut TcpStream, request: &[u8]) -> Vec<u8> {
    stream.write_all(request).await.unwrap();
    read_to_end(stream).await
}

async fn read_to_end(stream: &mut TcpStream) -> Vec<u8> {
    let mut response = Vec::new();
    match stream.read_to_end(&mut response).await {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
    }
    response
}

async fn read_some(stream: &mut TcpStream) -> String {
    let mut buffer = vec![0; 4096];
    let length = stream.read(&mut buffer).await.unwrap();
    String::from_utf8_lossy(&buffer[..length]).into_owned()
}

const GET: &[u8] = b"GET / HTTP/1.1\r\nhost: test\r\n\r\n";
const H2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const H2_EMPTY_SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];

/// An HTTP/2 HEADERS frame without `END_HEADERS`, after which only CONTINUATION frames may follow.
const H2_UNFINISHED_HEAD: &[u8] = &[0, 0, 1, 1, 0, 0, 0, 0, 1, 0x82];

#[tokio::test]
async fn connections_without_a_request_are_closed() {
    let server = TestServer::start(CAPS, hello()).await;
    let unfinished_head = [H2_PREFACE, H2_EMPTY_SETTINGS, H2_UNFINISHED_HEAD].concat();
    let openings: [&[u8]; 6] =
        [b"", b"G", b"GET / HTTP/1.1\r\nx: ", b"PRI * HTT", &unfinished_head[..33], &unfinished_head];
    for opening in openings {
        let mut stream = server.connect().await;
        stream.write_all(opening).await.unwrap();
        let response = read_to_end(&mut stream).await;
        assert!(!String::from_utf8_lossy(&response).contains("200 OK"), "{opening:?}");
    }
    assert!(server.has_metric(r#"test_connections_closed_total{port="test",reason="first_request_timeout"} 6"#));
}

/// A listener with one connection.
struct OneConnection(Mutex<Option<DuplexStream>>);

impl Listener for OneConnection {
    type Stream = DuplexStream;

    async fn accept(&self) -> io::Result<(DuplexStream, Option<ConnectionAddresses>)> {
        let stream = self.0.lock().unwrap().take();
        match stream {
            Some(stream) => Ok((stream, None)),
            None => pending().await,
        }
    }
}

#[tokio::test]
async fn client_that_does_not_read_must_send_its_first_request_in_time() {
    // The settings of the server do not fit into the buffer, so its first write is blocked.
    let (mut client, stream) = duplex(H2_PREFACE.len());
    let listener = OneConnection(Mutex::new(Some(stream)));
    let server = TestServer::start_on(listener, "127.0.0.1:0".parse().unwrap(), CAPS, hello());
    client.write_all(H2_PREFACE).await.unwrap();
    for open in [1, 0] {
        while !server.has_metric(&format!(r#"test_connections{{port="test"}} {open}"#)) {
            sleep(Duration::from_millis(10)).await;
        }
    }
    assert!(server.has_metric(r#"test_connections_closed_total{port="test",reason="first_request_timeout"} 1"#));
}

#[tokio::test]
async fn idle_connections_are_closed() {
    let server = TestServer::start(CAPS, hello()).await;
    let mut stream = server.connect().await;
    assert!(String::from_utf8(exchange(&mut stream, GET).await).unwrap().ends_with("hello"));
    assert!(server.has_metric(r#"test_connections{port="test"} 0"#));
    assert!(server.has_metric(r#"test_connections_closed_total{port="test",reason="idle_timeout"} 1"#));
}

#[tokio::test]
async fn head_of_a_further_request_must_arrive_in_time() {
    let server = TestServer::start(CAPS, hello()).await;
    let mut stream = server.connect().await;
    stream.write_all(GET).await.unwrap();
    assert!(read_some(&mut stream).await.ends_with("hello"));
    assert_eq!(exchange(&mut stream, b"GET / HTTP/1.1\r\nx: ").await, b"");
    assert!(server.has_metric(r#"test_connections_closed_total{port="test",reason="idle_timeout"} 1"#));
}

#[tokio::test]
async fn stalled_clients_are_cut() {
    let server = TestServer::start(CAPS, hello()).await;
    let mut uploading = server.connect().await;
    uploading.write_all(b"POST /echo HTTP/1.1\r\nhost: test\r\ncontent-length: 9\r\n\r\nabc").await.unwrap();
    let mut downloading = server.connect().await;
    downloading.write_all(b"GET /large HTTP/1.1\r\nhost: test\r\n\r\n").await.unwrap();
    let response = read_to_end(&mut uploading).await;
    assert!(response.starts_with(b"HTTP/1.1 400 "), "{}", String::from_utf8_lossy(&response));
    // A client may delay a response for as long as it may send no request. Tests of the whole servers cover longer stalls.
    assert!(server.has_metric(r#"test_connections_closed_total{port="test",reason="idle_timeout"} 1"#));
    assert!(read_to_end(&mut downloading).await.len() < 64 << 20);
}

#[tokio::test]
async fn too_large_head_is_refused() {
    let server = TestServer::start(CAPS, hello()).await;
    let mut stream = server.connect().await;
    let head = format!("GET / HTTP/1.1\r\nhost: test\r\nx: {}\r\n\r\n", "x".repeat(16_384));
    let response = exchange(&mut stream, head.as_bytes()).await;
    assert!(response.starts_with(b"HTTP/1.1 431 "), "{}", String::from_utf8_lossy(&response));
}

#[tokio::test]
async fn client_is_served_while_others_are_silent() {
    let server = TestServer::start(ConnectionCaps { total: 16, per_client: 8, pending: 4 }, hello()).await;
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(server.connect().await);
    }
    let mut stream = server.connect().await;
    stream.write_all(GET).await.unwrap();
    assert!(read_some(&mut stream).await.ends_with("hello"));
    for mut evicted in silent.drain(..90) {
        assert_eq!(read_to_end(&mut evicted).await, b"");
    }
}

#[tokio::test]
async fn connection_is_not_closed_while_the_server_works_on_a_request() {
    let started = Arc::new(AtomicUsize::new(0));
    let counter = started.clone();
    let wait = move || {
        counter.fetch_add(1, Ordering::SeqCst);
        pending::<()>()
    };
    let server =
        TestServer::start(ConnectionCaps { total: 2, per_client: 2, pending: 2 }, hello().route("/wait", get(wait)))
            .await;
    let mut working = server.connect().await;
    working.write_all(b"GET /wait HTTP/1.1\r\nhost: test\r\n\r\n").await.unwrap();
    while started.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    let mut uploading = server.connect().await;
    uploading.write_all(b"POST /echo HTTP/1.1\r\nhost: test\r\ncontent-length: 9\r\n\r\nabc").await.unwrap();
    let mut other = server.connect().await;
    other.write_all(b"GET /wait HTTP/1.1\r\nhost: test\r\n\r\n").await.unwrap();
    assert_eq!(read_to_end(&mut uploading).await, b"", "its client has not sent the rest of the request");
    while started.load(Ordering::SeqCst) == 1 {
        tokio::task::yield_now().await;
    }
    assert_eq!(read_to_end(&mut server.connect().await).await, b"", "the server works for both");
    assert!(server.has_metric(r#"test_connections{port="test"} 2"#));
}

#[tokio::test]
async fn shutdown_answers_requests_on_their_way_and_cuts_silent_clients() {
    let started = Arc::new(AtomicUsize::new(0));
    let (counter, (release, gate)) = (started.clone(), tokio::sync::watch::channel(false));
    let slow = move || {
        let (counter, mut gate) = (counter.clone(), gate.clone());
        async move {
            counter.fetch_add(1, Ordering::SeqCst);
            let _open = gate.wait_for(|open| *open).await;
            Body::from("slow")
        }
    };
    let server = TestServer::start(CAPS, hello().route("/slow", get(slow))).await;
    let (mut in_progress, mut kept_alive, silent) =
        (server.connect().await, server.connect().await, server.connect().await);
    in_progress.write_all(b"GET /slow HTTP/1.1\r\nhost: test\r\n\r\n").await.unwrap();
    kept_alive.write_all(GET).await.unwrap();
    assert!(read_some(&mut kept_alive).await.ends_with("hello"));
    while started.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    server.shutdown.trigger();
    // The server has not announced the end of this connection, so the client may still send a request.
    kept_alive.write_all(GET).await.unwrap();
    let response = String::from_utf8(read_to_end(&mut kept_alive).await).unwrap();
    assert!(response.contains("connection: close") && response.ends_with("hello"), "{response}");
    release.send_replace(true);
    assert!(String::from_utf8(read_to_end(&mut in_progress).await).unwrap().ends_with("slow"));
    server.task.await.unwrap().unwrap();
    drop(silent);
    assert_eq!(TcpStream::connect(server.address).await.unwrap_err().kind(), ErrorKind::ConnectionRefused);
}
