//! Tests of clients that keep connections open, or that flood a port.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]

use countersign_process::{Clock, SystemClock, server::raise_descriptor_limit};
use countersign_tests::{
    Agent, ControlPlane, Sidecar, eventually,
    h2::{self, DATA, GET_FIELDS, POST_FIELDS, frame},
    process::free_port,
    raw::{RawRequest, connect_tls},
};
use std::{
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
};

/// Silent connections per port, which `SILENT_CONNECTIONS` sets: more than a port accepts without a request.
fn silent_connections() -> usize {
    std::env::var("SILENT_CONNECTIONS").map_or(600, |count| count.parse().unwrap())
}

/// What silent clients or a flood may add to the resident memory of a process.
const MAX_ADDED_MEMORY: usize = 64 << 20;

/// Number of bytes that a flood sends unless the server closes the connection earlier.
const FLOOD_BYTES: usize = 16 << 20;

type Stream = Box<dyn ReadWrite>;
trait ReadWrite: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> ReadWrite for S {}

fn host_and_port(url: &str) -> String {
    url.split_once("://").unwrap().1.replace("localhost", "127.0.0.1")
}

async fn wait_for_close(mut stream: impl AsyncRead + Unpin) {
    let mut buffer = vec![0; 65_536];
    while matches!(stream.read(&mut buffer).await, Ok(length) if length > 0) {}
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_clients_keep_no_port_busy() {
    raise_descriptor_limit();
    let control = ControlPlane::start_one_with(&[]).await;
    let listen = format!("listen.grpc=127.0.0.1:{}", free_port());
    let key = control.create_key(control.service(), "sync").await;
    let sidecar = Sidecar::start_with(&control, &[&key], &[&listen]);
    sidecar.wait_until_ready().await;
    let (agent, _) = Agent::with_role(&control, "reader", &[]).await;
    let [api, sync, admin] = ["URL", "SYNC_URL", "ADMIN_URL"].map(|name| host_and_port(&control.env[name]));
    let memory = || [control.resident_memory(), sidecar.resident_memory()];
    let before = memory();
    let mut silent = JoinSet::new();
    for _ in 0..silent_connections() {
        for address in [&api, &sync] {
            // A connection that the server closes for a newer one may end during its handshake.
            if let Ok(stream) = connect_tls(&control, address, &[b"h2"]).await {
                silent.spawn(wait_for_close(stream));
            }
        }
        for address in [&admin, listen.strip_prefix("listen.grpc=").unwrap(), &host_and_port(&sidecar.admin.url)] {
            silent.spawn(wait_for_close(TcpStream::connect(address).await.unwrap()));
        }
    }
    assert_eq!(control.api.get("/health").await.expect(200)["status"], "healthy");
    let token = agent.token().await;
    assert_eq!(control.verify(&token).await.status, 200);
    assert_eq!(control.admin().get("/readyz").await.status, 200);
    assert_eq!(sidecar.admin.get("/readyz").await.status, 200);
    assert_eq!(sidecar.check_token(&token).await.status, 200);
    let second = Sidecar::start_with(&control, &[&key], &[]);
    second.wait_until_ready().await;
    for (name, before, after) in [("control plane", before[0], memory()[0]), ("sidecar", before[1], memory()[1])] {
        let added = after.saturating_sub(before);
        println!("{name}: {} MiB more with {} connections per port", added >> 20, silent_connections());
        assert!(added < MAX_ADDED_MEMORY, "{name}: {added} bytes more");
    }
    silent.join_all().await;
    let line = r#"countersign_connections_closed_total{port="sync",reason="capacity"}"#;
    assert!(control.metric(line).await.unwrap() > 0.0);
}

/// The bytes of the n-th step of a flood.
type Flood = fn(u32) -> Vec<u8>;

/// Requests that the client resets at once.
fn resets(step: u32) -> Vec<u8> {
    let stream = 2 * step + 1;
    [frame(1, 0x5, stream, GET_FIELDS), frame(3, 0, stream, &[0, 0, 0, 8])].concat()
}

/// A request head that never ends.
fn continuations(step: u32) -> Vec<u8> {
    if step == 0 { frame(1, 0, 1, GET_FIELDS) } else { frame(9, 0, 1, &[0, 1, b'a', 1, b'b']) }
}

/// Empty DATA frames, which use no flow-control window.
fn empty_data(step: u32) -> Vec<u8> {
    if step == 0 { frame(1, 0x4, 1, POST_FIELDS) } else { frame(0, 0, 1, &[]) }
}

fn pings(_step: u32) -> Vec<u8> {
    frame(6, 0, 0, &[7; 8])
}

fn settings(_step: u32) -> Vec<u8> {
    frame(4, 0, 0, &[])
}

/// Sends a flood until the server closes the connection or [`FLOOD_BYTES`] are sent. Returns whether the server closed it.
async fn send_flood(stream: Stream, flood: Flood) -> bool {
    let (reader, mut writer) = tokio::io::split(stream);
    let send = async {
        let mut batch = h2::opening(&[]);
        let (mut sent, mut step) = (0, 0);
        while sent < FLOOD_BYTES {
            while batch.len() < 65_536 {
                batch.extend(flood(step));
                step += 1;
            }
            if writer.write_all(&batch).await.is_err() {
                return true;
            }
            sent += batch.len();
            batch.clear();
        }
        false
    };
    tokio::select! {
        closed = send => closed,
        () = wait_for_close(reader) => true,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn http2_floods_use_no_memory_and_stop_nobody() {
    let control = ControlPlane::start_one_with(&[]).await;
    let agent = Agent::register(&control, "agent").await;
    let before = control.resident_memory();
    let floods: [(&str, Flood, bool); 5] = [
        ("resets", resets, true),
        ("continuations", continuations, true),
        ("empty data", empty_data, true),
        ("pings", pings, false),
        ("settings", settings, false),
    ];
    for port in ["URL", "SYNC_URL"] {
        let address = host_and_port(&control.env[port]);
        for (name, flood, must_close) in floods {
            let mut clients = JoinSet::new();
            for _ in 0..4 {
                let stream: Stream = Box::new(connect_tls(&control, &address, &[b"h2"]).await.unwrap());
                clients.spawn(send_flood(stream, flood));
            }
            let _token = agent.token().await;
            let closed = clients.join_all().await;
            assert!(!must_close || closed.iter().all(|closed| *closed), "{port}, {name}: {closed:?}");
            let added = control.resident_memory().saturating_sub(before);
            assert!(added < MAX_ADDED_MEMORY, "{port}, {name}: {added} bytes more");
        }
    }
    assert_eq!(control.api.get("/health").await.expect(200)["status"], "healthy");
}

/// HTTP/1.1 connections stay open as long as the settings say, which is longer than a client may take for the head of a request.
#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_live_as_long_as_configured() {
    let control = ControlPlane::start_one_with(&["connections.idle_seconds=26"]).await;
    let mut stream = connect_tls(&control, &host_and_port(&control.env["URL"]), &[b"http/1.1"]).await.unwrap();
    stream.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    wait_for_close(stream).await;
    let line = r#"countersign_connections_closed_total{port="api",reason="idle_timeout"}"#;
    assert_eq!(control.metric(line).await, Some(1.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_responses_and_large_heads_are_cut() {
    let control = ControlPlane::start_one_with(&[]).await;
    let large = RawRequest::get("/health").with("x-large", "x".repeat(100 * 1024));
    assert_eq!(large.send_tls(&control, b"").await.unwrap().status, 431);
    let mut stream = connect_tls(&control, &host_and_port(&control.env["URL"]), &[b"http/1.1"]).await.unwrap();
    let request = b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n";
    // The server stops reading requests when it cannot write more responses.
    let pipelined = async { while stream.write_all(request).await.is_ok() {} };
    let cut = async {
        let line = r#"countersign_connections_closed_total{port="api",reason="stall_timeout"}"#;
        while control.metric(line).await != Some(1.0) {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    };
    tokio::join!(pipelined, cut);
}

/// Sets the soft limit of open files of a running process.
fn set_descriptor_limit(process: u32, limit: &str) {
    let status = Command::new("prlimit").args(["--pid", &process.to_string(), &format!("--nofile={limit}:")]).status();
    assert!(status.unwrap().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn lack_of_file_descriptors_is_logged_once_and_stops_nobody() {
    let control = ControlPlane::start_one_with(&[]).await;
    let address = host_and_port(&control.env["URL"]);
    let process = control.process_id();
    // The first request below connects this client. Later, there may be no file descriptor for a new connection.
    let admin = control.admin();
    let mut silent = Vec::new();
    let mut connect = async |count: f64| {
        while admin.metric(r#"countersign_connections{port="api"}"#).await.unwrap_or_default() < count {
            silent.push(TcpStream::connect(&address).await.unwrap());
        }
    };
    connect(200.0).await;
    let descriptors = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap();
    let highest = descriptors.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse::<u32>().unwrap()).max();
    set_descriptor_limit(process, &(highest.unwrap() + 1).to_string());
    for _ in 0..100 {
        silent.push(TcpStream::connect(&address).await.unwrap());
    }
    let line = r#"countersign_accept_errors_total{port="api"}"#;
    control.wait_for_log("cannot accept connections").await;
    assert_eq!(control.api.get("/health").await.expect(200)["status"], "healthy");
    assert!(admin.metric(line).await.unwrap() > 0.0);
    let failures = control.log().matches("cannot accept connections").count();
    assert!(failures <= 3, "at most once for each port:\n{}", control.log());
    drop(silent);
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_loses_no_request_under_load() {
    let mut control = ControlPlane::start_one_with(&[]).await;
    let silent = connect_tls(&control, &host_and_port(&control.env["URL"]), &[b"h2"]).await.unwrap();
    // An idle client that does not answer the ping of a graceful close.
    let mut idle = connect_tls(&control, &host_and_port(&control.env["URL"]), &[b"h2"]).await.unwrap();
    idle.write_all(&[h2::opening(&[]), h2::request(1, "GET", "/health")].concat()).await.unwrap();
    while h2::read_frame(&mut idle).await.unwrap().kind != DATA {}
    let (stopped, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut clients = JoinSet::new();
    for http2 in [false, true, false, true] {
        let (stopped, answered) = (stopped.clone(), answered.clone());
        let builder = countersign_tests::http::trusting(&control.authority());
        let client = if http2 { builder } else { builder.http1_only() }.build().unwrap();
        let url = format!("{}/.well-known/jwks.json", control.env["URL"]);
        clients.spawn(async move {
            loop {
                match client.get(&url).send().await {
                    Ok(response) => assert_eq!(response.status(), 200),
                    Err(error) if error.is_connect() => return assert!(stopped.load(Ordering::SeqCst), "{error}"),
                    Err(error) => panic!("a request was lost: {error:?}"),
                }
                answered.fetch_add(1, Ordering::SeqCst);
            }
        });
    }
    let warm = async || (answered.load(Ordering::SeqCst) > 100).then_some(());
    eventually("the clients send requests", warm, String::new).await;
    stopped.store(true, Ordering::SeqCst);
    let terminated = SystemClock.since_boot();
    assert!(control.terminate().await.success());
    let took = SystemClock.since_boot().saturating_sub(terminated);
    clients.join_all().await;
    println!("{} requests answered; exit {:.1} s after SIGTERM", answered.load(Ordering::SeqCst), took.as_secs_f64());
    assert!(!control.log().contains("aborts connections"), "{}", control.log());
    drop((silent, idle));
}
