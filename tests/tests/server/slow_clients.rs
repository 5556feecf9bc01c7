//! Tests of clients that send large heads, of clients that do not take responses, and of what an operator sees of them.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]

use countersign_tests::{
    ControlPlane, Sidecar, eventually,
    h2::{
        self, END_HEADERS, HEADERS, INITIAL_WINDOW_SIZE, PING, POST_FIELDS, RST_STREAM, WINDOW_UPDATE, frame, request,
    },
    http::{HttpClient, trusting},
    process::free_port,
    raw::connect_tls,
    tools,
};
use serde_json::json;
use std::{net::Ipv4Addr, process::Command, sync::Arc, time::Duration};
use tokio::{io::AsyncWriteExt as _, net::TcpStream, task::JoinSet};
use tokio_rustls::client::TlsStream;

/// A file of the documentation page with more than a megabyte.
const LARGE_FILE: &str = "/docs/swagger-ui-bundle.js";

/// Concurrent streams that a connection to the API may have.
const STREAMS: u32 = 100;

/// The ids of the streams that a client opens.
fn stream_ids() -> impl Iterator<Item = u32> {
    (0..STREAMS).map(|index| 2 * index + 1)
}

/// Connects to the API. The client takes only the first `window` bytes of each response.
async fn connect(control: &ControlPlane, window: u32) -> TlsStream<TcpStream> {
    let address = control.env["URL"].split_once("://").unwrap().1.replace("localhost", "127.0.0.1");
    let mut stream = connect_tls(control, &address, &[b"h2"]).await.unwrap();
    stream.write_all(&h2::opening(&[(INITIAL_WINDOW_SIZE, window)])).await.unwrap();
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_responses_share_the_documentation() {
    let control = ControlPlane::start_one_with(&[]).await;
    assert_eq!(control.api.get(LARGE_FILE).await.status, 200);
    let before = control.resident_memory();
    let mut stream = connect(&control, 0).await;
    let requests: Vec<u8> = stream_ids().flat_map(|id| request(id, "GET", LARGE_FILE)).collect();
    stream.write_all(&requests).await.unwrap();
    let line = r#"countersign_http_requests_total{method="GET",route="/docs/{file}",status="200"}"#;
    let answered = async || (control.metric(line).await == Some(101.0)).then_some(());
    eventually("all requests are answered", answered, || control.log()).await;
    let added = control.resident_memory().saturating_sub(before);
    assert!(added < 32 << 20, "{added} bytes more");
    drop(stream);
}

/// A request head with this many fields besides the pseudo-fields.
fn many_fields(count: usize) -> reqwest::header::HeaderMap {
    let name = |index| format!("x-{index}").parse().unwrap();
    (0..count).map(|index| -> (reqwest::header::HeaderName, _) { (name(index), "y".parse().unwrap()) }).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn heads_with_many_fields_are_refused_on_all_ports() {
    let control = ControlPlane::start_one_with(&[]).await;
    let check = format!("127.0.0.1:{}", free_port());
    let key = control.create_key(control.service(), "sync").await;
    let sidecar = Sidecar::start_with(&control, &[&key], &[&format!("listen.grpc={check}")]);
    sidecar.wait_until_ready().await;
    let (url, sync, admin) = (&control.env["URL"], &control.env["SYNC_URL"], &control.env["ADMIN_URL"]);
    let over_tls = || trusting(&control.authority());
    for (name, url, client) in [
        ("API, HTTP/2", url.clone(), over_tls()),
        ("API, HTTP/1.1", url.clone(), over_tls().http1_only()),
        ("sync", sync.clone(), over_tls()),
        ("admin, HTTP/1.1", admin.clone(), reqwest::Client::builder()),
        ("admin, HTTP/2", admin.clone(), reqwest::Client::builder().http2_prior_knowledge()),
        ("checks", format!("http://{check}"), reqwest::Client::builder().http2_prior_knowledge()),
    ] {
        let client = client.build().unwrap();
        for (count, is_refused) in [(90, false), (101, true)] {
            let response = client.post(format!("{url}/x")).headers(many_fields(count)).send().await.unwrap();
            assert_eq!(response.status() == 431, is_refused, "{name}, {count} fields: {response:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn heads_with_many_fields_use_no_memory() {
    let control = ControlPlane::start_one_with(&[]).await;
    let before = control.resident_memory();
    // One field in the dynamic table of HPACK, then references to it of one byte each.
    let fields = [POST_FIELDS, &[0x40, 1, b'x', 1, b'y'], &[0xbe; 1_700]].concat();
    let requests: Vec<u8> = stream_ids().flat_map(|id| frame(HEADERS, END_HEADERS, id, &fields)).collect();
    let mut streams = Vec::new();
    for _ in 0..20 {
        let mut stream = connect(&control, 65_535).await;
        stream.write_all(&[&requests[..], &frame(PING, 0, 0, &[7; 8])].concat()).await.unwrap();
        while h2::read_frame(&mut stream).await.unwrap().kind != PING {}
        streams.push(stream);
    }
    let added = control.resident_memory().saturating_sub(before);
    println!("{} MiB more", added >> 20);
    assert!(added < 128 << 20, "{added} bytes more");
    drop(streams);
}

/// Keeps as many requests open as the server accepts on a connection. The bodies of these requests never arrive.
async fn keep_requests_open(control: Arc<ControlPlane>) {
    let (mut reader, mut writer) = tokio::io::split(connect(&control, 65_535).await);
    let open = |id| frame(HEADERS, END_HEADERS, id, POST_FIELDS);
    let window = frame(WINDOW_UPDATE, 0, 0, &(1_u32 << 30).to_be_bytes());
    let requests: Vec<u8> = stream_ids().flat_map(open).collect();
    writer.write_all(&[window, requests].concat()).await.unwrap();
    for next in (2 * STREAMS + 1..).step_by(2) {
        let answered = loop {
            let frame = h2::read_frame(&mut reader).await.unwrap();
            if frame.kind == HEADERS {
                break frame.stream;
            }
        };
        // The server refuses further requests at once, so without this pause, the client would keep the machine busy.
        tokio::time::sleep(Duration::from_millis(20)).await;
        let cancel = frame(RST_STREAM, 0, answered, &[0, 0, 0, 8]);
        writer.write_all(&[cancel, open(next)].concat()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn client_with_many_open_requests_leaves_room_for_others() {
    let control = Arc::new(ControlPlane::start_one_with(&[]).await);
    let mut clients = JoinSet::new();
    for _ in 0..12 {
        clients.spawn(keep_requests_open(control.clone()));
    }
    let challenge = async |client: &HttpClient| client.post("/auth/challenge", json!({})).await;
    let [greedy, other] = [1, 2].map(|last| control.client_at(Ipv4Addr::new(127, 0, 0, last)));
    let refused = async || Some(challenge(&greedy).await).filter(|response| response.status == 503);
    let refused = eventually("the client has its share", refused, || control.log()).await;
    assert_eq!(refused.error(), (503, "SERVICE_UNAVAILABLE", "overloaded"));
    assert_eq!(refused.header("retry-after"), "1");
    assert_eq!(challenge(&other).await.error().1, "VALIDATION_ERROR", "another client has a share of its own");
    assert_eq!(greedy.get("/health").await.expect(200)["status"], "healthy");
    clients.abort_all();
    while clients.join_next().await.is_some() {}
    eventually(
        "the share is free again",
        async || (challenge(&greedy).await.status == 400).then_some(()),
        || control.log(),
    )
    .await;
}

/// The commands of the page about floods that list refused clients, for the lines in a file instead of those of the journal.
fn list_refused_clients(log: &std::path::Path) -> String {
    let page = std::fs::read_to_string(tools::root().join("docs/run/trouble/connections.md")).unwrap();
    let mut blocks = page.split("```sh\n").map(|block| block.split("```").next().unwrap());
    let commands = blocks.find(|block| block.starts_with("journalctl") && block.contains("429")).unwrap();
    let journal = "journalctl -u countersign-control-plane -o cat --since -10min";
    assert_eq!(commands.matches(journal).count(), 2, "{commands}");
    let commands = commands.replace(journal, &format!("cat {}", log.display()));
    let output = Command::new("bash").args(["-euo", "pipefail", "-c", &commands]).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_clients_are_listed_by_the_documented_commands() {
    for format in ["text", "json"] {
        let settings = [format!("log.format={format}"), "limits.address_per_minute=1".to_owned()];
        let control = Arc::new(ControlPlane::start_one_with(&settings.each_ref().map(String::as_str)).await);
        let [greedy, limited] = [1, 3].map(|last| control.client_at(Ipv4Addr::new(127, 0, 0, last)));
        let challenge = async |client: &HttpClient| client.post("/auth/challenge", json!({})).await;
        let exceeded = async || (challenge(&limited).await.status == 429).then_some(());
        eventually("the client is over its limit", exceeded, || control.log()).await;
        let mut clients = JoinSet::new();
        for _ in 0..12 {
            clients.spawn(keep_requests_open(control.clone()));
        }
        let refused = async || (challenge(&greedy).await.status == 503).then_some(());
        eventually("the other client has its share", refused, || control.log()).await;
        clients.abort_all();
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let listed = async || {
            std::fs::write(&log, control.log()).unwrap();
            let lines = list_refused_clients(&log);
            let has = |end: &str| lines.lines().any(|line| line.trim_start().split_once(' ').unwrap().1 == end);
            (has("503 overloaded 127.0.0.1") && has("429  127.0.0.3")).then_some(())
        };
        eventually("the commands list both clients", listed, || control.log()).await;
        assert!(control.metric(r#"countersign_refusals_total{reason="overloaded"}"#).await > Some(0.0));
    }
}
