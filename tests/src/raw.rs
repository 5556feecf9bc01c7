//! HTTP/1.1 requests as raw bytes, for requests that an HTTP library would refuse or normalize.

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
use tokio_rustls::{TlsConnector, client::TlsStream};

/// A request that is sent exactly as built.
#[derive(Debug, Clone)]
pub struct RawRequest(Vec<u8>);

impl RawRequest {
    /// GET with an unchecked path.
    pub fn get(path: &str) -> Self {
        Self::new("GET", path)
    }

    /// Any method and path, both unchecked.
    pub fn new(method: &str, path: &str) -> Self {
        Self(format!("{method} {path} HTTP/1.1\r\nhost: service\r\nconnection: close\r\n").into_bytes())
    }

    /// Appends a header.
    pub fn with(self, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Self {
        self.line([name.as_ref(), b": ", value.as_ref()].concat())
    }

    /// Appends a line without checking that it is a header.
    pub fn line(mut self, line: impl AsRef<[u8]>) -> Self {
        self.0.extend_from_slice(line.as_ref());
        self.0.extend_from_slice(b"\r\n");
        self
    }

    /// Appends an `Authorization` header with a bearer token.
    pub fn bearer(self, token: &str) -> Self {
        self.with("authorization", format!("Bearer {token}"))
    }

    /// Sends the request once.
    pub async fn send(&self, server: &HttpClient) -> HttpResponse {
        let address = server.url.strip_prefix("http://").expect("the URL uses plain HTTP");
        let mut stream = TcpStream::connect(address).await.expect("the server listens");
        stream.write_all(&[&self.0, b"\r\n".as_slice()].concat()).await.expect("the server reads the request");
        read_response(&mut stream)
            .await
            .unwrap_or_else(|partial| panic!("the connection closed after part of a response: {partial}"))
    }

    /// Sends the request with a body over TLS. Returns `None` if the server closes without a response.
    pub async fn send_tls(&self, server: &ControlPlane, body: &[u8]) -> Option<HttpResponse> {
        self.exchange_tls(server, body, false).await
    }

    /// Sends the request like `send_tls`, and closes the sending side of the connection after the body.
    pub async fn send_tls_and_close(&self, server: &ControlPlane, body: &[u8]) -> Option<HttpResponse> {
        self.exchange_tls(server, body, true).await
    }

    async fn exchange_tls(&self, server: &ControlPlane, body: &[u8], close: bool) -> Option<HttpResponse> {
        let address = server.env["URL"].strip_prefix("https://").expect("the URL uses HTTPS");
        let mut stream = connect_tls(server, address, &[]).await.expect("the TLS handshake succeeds");
        let sent = async {
            stream.write_all(&[&self.0, b"\r\n".as_slice(), body].concat()).await?;
            if close { stream.shutdown().await } else { Ok(()) }
        };
        // Ignore an error: a server that responds before it has read the whole request may close the connection.
        let _connection_closed = sent.await;
        read_response(&mut stream).await.ok()
    }

    /// Repeats the request until the sidecar responds within Envoy's timeout. After Envoy's timeout for the
    /// sidecar, which can pass on a busy machine, Envoy responds 503 without a body.
    pub async fn send_until_checked(&self, server: &HttpClient) -> HttpResponse {
        let checked = async || {
            let response = self.send(server).await;
            (response.status != 503 || response.body != "").then_some(response)
        };
        eventually("the sidecar responds within Envoy's timeout", checked, String::new).await
    }
}

/// Opens a TLS connection to an address of a control plane, and offers protocols (ALPN).
pub async fn connect_tls(
    server: &ControlPlane,
    address: &str,
    protocols: &[&[u8]],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    let authority = CertificateDer::from_pem_slice(&server.authority()).expect("the certificate is valid");
    roots.add(authority).expect("the certificate is valid");
    let mut config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from("localhost").expect("the name is valid");
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

/// Reads until the response is complete. If the connection closes before the response is complete, returns the received bytes as
/// the error. Does not read to the end of the stream, because Envoy keeps a connection open for a second after an early response.
async fn read_response(stream: &mut (impl AsyncRead + Unpin)) -> Result<HttpResponse, String> {
    let mut bytes = Vec::new();
    loop {
        let read = stream.read_buf(&mut bytes).await;
        if let Some(response) = parse_response(&bytes) {
            return Ok(response);
        }
        if !read.is_ok_and(|read| read > 0) {
            return Err(String::from_utf8_lossy(&bytes).into_owned());
        }
    }
}

/// Parses a response; `None` if the response is incomplete.
fn parse_response(bytes: &[u8]) -> Option<HttpResponse> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&bytes[..end]);
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).expect("the status is valid");
    let mut headers = HeaderMap::new();
    for (name, value) in lines.filter_map(|line| line.split_once(": ")) {
        let name = HeaderName::from_bytes(name.as_bytes()).expect("the name is valid");
        headers.append(name, HeaderValue::from_str(value).expect("the header value is valid"));
    }
    let length = headers.get("content-length").map_or(Some(0), |length| length.to_str().ok()?.parse().ok());
    let body = bytes[end + 4..].get(..length.expect("the content-length is a number"))?;
    let text = || Value::String(String::from_utf8_lossy(body).into());
    Some(HttpResponse { status, headers, body: serde_json::from_slice(body).unwrap_or_else(|_| text()) })
}
