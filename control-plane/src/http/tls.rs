//! The TLS handshake of the API port, which answers plain HTTP with an error and never with a redirect. Behind proxies that
//! terminate TLS, the API port has no handshake, and `client_address` checks each request's protocol.

use super::code::ErrorCode;
use countersign_process::{Rng, server::Handshake};
use serde_json::json;
use std::{io, sync::Arc};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

/// The content type of a TLS handshake record (RFC 8446, section 5.1), which is the first byte of a TLS connection.
const TLS_HANDSHAKE_RECORD: u8 = 0x16;

/// Maximum number of bytes of a plain HTTP request that are read before it is rejected.
const MAX_PLAIN_REQUEST: usize = 16 * 1024;

/// Accepts TLS connections, and answers plain HTTP with an error.
#[derive(Clone)]
pub struct HttpsAcceptor {
    pub acceptor: TlsAcceptor,
    /// Generates the request ids of rejected plain HTTP requests.
    pub rng: Arc<dyn Rng>,
}

impl Handshake<TcpStream> for HttpsAcceptor {
    type Stream = TlsStream<TcpStream>;

    async fn handshake(&self, stream: TcpStream) -> io::Result<Self::Stream> {
        let mut first_byte = [0];
        if stream.peek(&mut first_byte).await? == 1 && first_byte[0] != TLS_HANDSHAKE_RECORD {
            reject_plain_http(stream, self.rng.as_ref()).await?;
            return Err(io::Error::new(io::ErrorKind::InvalidData, "plain HTTP"));
        }
        self.acceptor.accept(stream).await
    }
}

/// Reads the head of the request and writes an error response. If we closed a connection with unread bytes, TCP would reset it, and
/// the client could lose the response.
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
