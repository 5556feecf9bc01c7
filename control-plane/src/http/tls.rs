//! The connection acceptors of the API port.
//!
//! [`HttpsAcceptor`] accepts TLS and answers plain HTTP on the same port with an error; it never redirects.
//! [`PlainHttpAcceptor`] serves proxies that terminate TLS; `client_address` then checks the protocol of each request.

use super::code::ErrorCode;
use axum_server::accept::Accept;
use countersign_process::Rng;
use serde_json::json;
use std::{io, pin::Pin, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

/// The content type of a TLS handshake record (RFC 8446, section 5.1), which is the first byte of a TLS connection.
const TLS_HANDSHAKE_RECORD: u8 = 0x16;

/// Timeout for the TLS handshake and the first byte of the first request.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number of bytes of a plain HTTP request that are read before it is rejected.
const MAX_PLAIN_REQUEST: usize = 16 * 1024;

/// Accepts TLS connections only.
#[derive(Clone)]
pub struct HttpsAcceptor {
    acceptor: TlsAcceptor,
    rng: Arc<dyn Rng>,
}

impl HttpsAcceptor {
    /// `rng` generates the request ids of rejected plain HTTP requests.
    pub fn new(acceptor: TlsAcceptor, rng: Arc<dyn Rng>) -> Self {
        Self { acceptor, rng }
    }
}

impl<S: Send + 'static> Accept<TcpStream, S> for HttpsAcceptor {
    type Stream = BufReader<TlsStream<TcpStream>>;
    type Service = S;
    type Future = Pin<Box<dyn Future<Output = io::Result<(Self::Stream, S)>> + Send>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let Self { acceptor, rng } = self.clone();
        Box::pin(async move {
            let handshake = async {
                stream.set_nodelay(true)?;
                let mut first_byte = [0];
                if stream.peek(&mut first_byte).await? == 1 && first_byte[0] != TLS_HANDSHAKE_RECORD {
                    reject_plain_http(stream, rng.as_ref()).await?;
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "plain HTTP"));
                }
                // Wait for the first byte within the timeout, because hyper has no timeout for the first request.
                let mut stream = BufReader::new(acceptor.accept(stream).await?);
                stream.fill_buf().await?;
                Ok(stream)
            };
            let stream = timeout(HANDSHAKE_TIMEOUT, handshake).await.map_err(|_| io::ErrorKind::TimedOut)??;
            Ok((stream, service))
        })
    }
}

/// Accepts plain HTTP from proxies that terminate TLS.
#[derive(Clone)]
pub struct PlainHttpAcceptor;

impl<S: Send + 'static> Accept<TcpStream, S> for PlainHttpAcceptor {
    type Stream = BufReader<TcpStream>;
    type Service = S;
    type Future = Pin<Box<dyn Future<Output = io::Result<(Self::Stream, S)>> + Send>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        Box::pin(async move {
            stream.set_nodelay(true)?;
            // Wait for the first byte within the timeout, because hyper has no timeout for the first request.
            let mut stream = BufReader::new(stream);
            timeout(HANDSHAKE_TIMEOUT, stream.fill_buf()).await.map_err(|_| io::ErrorKind::TimedOut)??;
            Ok((stream, service))
        })
    }
}

/// Reads the head of the request and writes an error response. If the head were not read, a TCP reset could discard the
/// response.
async fn reject_plain_http(mut stream: TcpStream, rng: &dyn Rng) -> io::Result<()> {
    let mut request = Vec::new();
    let mut buffer = [0; 2048];
    while request.len() < MAX_PLAIN_REQUEST && !request.windows(4).any(|window| window == b"\r\n\r\n") {
        match stream.read(&mut buffer).await? {
            0 => break,
            count => request.extend_from_slice(&buffer[..count]),
        }
    }
    let body = json!({ "error": {
        "code": ErrorCode::HttpsRequired.as_str(),
        "message": "This port speaks HTTPS only: use https:// in the URL",
        "details": {},
    }})
    .to_string();
    let mut id = [0; 16];
    rng.fill(&mut id);
    let (id, length) = (hex::encode(id), body.len());
    let head = "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close";
    let response = format!("{head}\r\nx-request-id: {id}\r\ncontent-length: {length}\r\n\r\n{body}");
    stream.write_all(response.as_bytes()).await?;
    stream.shutdown().await
}
