//! HTTP/1.1 as bytes on the wire: what a library would refuse to send, or would tidy up before.

use crate::{
    ControlPlane,
    http::{HttpClient, HttpResponse},
    process::eventually,
};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use serde_json::Value;
use std::sync::Arc;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;

/// A request, exactly as spelled.
#[derive(Debug, Clone)]
pub struct RawRequest(Vec<u8>);

impl RawRequest {
    /// GET of a path, which is not looked at.
    pub fn get(path: &str) -> Self {
        Self::new("GET", path)
    }

    /// Any method of a path; neither is looked at.
    pub fn new(method: &str, path: &str) -> Self {
        Self(format!("{method} {path} HTTP/1.1\r\nhost: service\r\nconnection: close\r\n").into_bytes())
    }

    /// One more header, after those that are there.
    pub fn with(self, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Self {
        self.line([name.as_ref(), b": ", value.as_ref()].concat())
    }

    /// One more line, which need not be a header.
    pub fn line(mut self, line: impl AsRef<[u8]>) -> Self {
        self.0.extend_from_slice(line.as_ref());
        self.0.extend_from_slice(b"\r\n");
        self
    }

    /// One more header with a bearer token.
    pub fn bearer(self, token: &str) -> Self {
        self.with("authorization", format!("Bearer {token}"))
    }

    /// Sends it once.
    pub async fn send(&self, to: &HttpClient) -> HttpResponse {
        let address = to.url.strip_prefix("http://").expect("plain HTTP");
        let mut stream = TcpStream::connect(address).await.expect("the server listens");
        stream.write_all(&[&self.0, b"\r\n".as_slice()].concat()).await.expect("the server reads");
        read_answer(&mut stream).await.unwrap_or_else(|read| panic!("the answer ends early: {read}"))
    }

    /// Sends it over TLS with the bytes of a body; nothing comes back from a server that hangs up.
    pub async fn send_tls(&self, to: &ControlPlane, body: &[u8]) -> Option<HttpResponse> {
        self.exchange_tls(to, body, false).await
    }

    /// The same, and says that no more will come, which on HTTP/1.1 is leaving.
    pub async fn send_tls_and_leave(&self, to: &ControlPlane, body: &[u8]) -> Option<HttpResponse> {
        self.exchange_tls(to, body, true).await
    }

    async fn exchange_tls(&self, to: &ControlPlane, body: &[u8], leave: bool) -> Option<HttpResponse> {
        let mut roots = RootCertStore::empty();
        let authority = CertificateDer::from_pem_slice(&to.authority()).expect("a certificate");
        roots.add(authority).expect("a certificate");
        let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let address = to.env["URL"].strip_prefix("https://").expect("HTTPS");
        let stream = TcpStream::connect(address).await.expect("the server listens");
        let name = ServerName::try_from("localhost").expect("a name");
        let mut stream =
            TlsConnector::from(Arc::new(config)).connect(name, stream).await.expect("the server shakes hands");
        let sent = async {
            stream.write_all(&[&self.0, b"\r\n".as_slice(), body].concat()).await?;
            if leave { stream.shutdown().await } else { Ok(()) }
        };
        // A server that answers before it has read everything may close meanwhile.
        let _hung_up = sent.await;
        read_answer(&mut stream).await.ok()
    }

    /// Sends it until the authorizer answered in time, for which Envoy may not wait long enough on a
    /// busy machine: then it says 503 without a body.
    pub async fn judged(&self, to: &HttpClient) -> HttpResponse {
        let judged = async || {
            let answer = self.send(to).await;
            (answer.status != 503 || answer.body != "").then_some(answer)
        };
        eventually("the authorizer answers in time", judged, String::new).await
    }
}

/// Reads until the answer is there; else what came. Not to the end: Envoy leaves a connection open for a
/// second after an early answer.
async fn read_answer(stream: &mut (impl AsyncRead + Unpin)) -> Result<HttpResponse, String> {
    let mut bytes = Vec::new();
    loop {
        let read = stream.read_buf(&mut bytes).await;
        if let Some(answer) = answer(&bytes) {
            return Ok(answer);
        }
        if !read.is_ok_and(|read| read > 0) {
            return Err(String::from_utf8_lossy(&bytes).into_owned());
        }
    }
}

/// The answer, if all of it is there.
fn answer(bytes: &[u8]) -> Option<HttpResponse> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&bytes[..end]);
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).expect("a status");
    let mut headers = HeaderMap::new();
    for (name, value) in lines.filter_map(|line| line.split_once(": ")) {
        let name = HeaderName::from_bytes(name.as_bytes()).expect("a name");
        headers.append(name, HeaderValue::from_str(value).expect("a value"));
    }
    let length = headers.get("content-length").map_or(Some(0), |length| length.to_str().ok()?.parse().ok());
    let body = bytes[end + 4..].get(..length.expect("a length"))?;
    let text = || Value::String(String::from_utf8_lossy(body).into());
    Some(HttpResponse { status, headers, body: serde_json::from_slice(body).unwrap_or_else(|_| text()) })
}
