//! Tests of clients that do not take responses.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]

use countersign_tests::{
    ControlPlane, eventually,
    h2::{self, INITIAL_WINDOW_SIZE, request},
    http::HttpClient,
    raw::connect_tls,
};
use tokio::{io::AsyncWriteExt as _, net::TcpStream};
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

async fn metrics(control: &ControlPlane) -> String {
    HttpClient::plain(control.env["ADMIN_URL"].clone()).get("/metrics").await.body.as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_responses_share_the_documentation() {
    let control = ControlPlane::start_one_with(&[]).await;
    assert_eq!(control.api.get(LARGE_FILE).await.status, 200);
    let before = control.resident_memory();
    let mut stream = connect(&control, 0).await;
    let requests: Vec<u8> = stream_ids().flat_map(|id| request(id, "GET", LARGE_FILE)).collect();
    stream.write_all(&requests).await.unwrap();
    let line = r#"countersign_http_requests_total{method="GET",route="/docs/{file}",status="200"} 101"#;
    let answered = async || metrics(&control).await.lines().any(|other| other == line).then_some(());
    eventually("all requests are answered", answered, || control.log()).await;
    let added = control.resident_memory().saturating_sub(before);
    assert!(added < 32 << 20, "{added} bytes more");
    drop(stream);
}
