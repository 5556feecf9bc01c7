//! HTTPS from the first byte: whoever speaks plain HTTP is told so, on the same port, never redirected.
//!
//! Where proxies terminate TLS, [`ForProxies`] takes plain HTTP, and `origin` asks of each request how it came.

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

/// The first byte of a TLS record that carries a handshake.
const HANDSHAKE: u8 = 0x16;

/// How long a client may take to shake hands and to begin its first request.
const PATIENCE: Duration = Duration::from_secs(10);

/// The longest plain request that is read before it is answered, in bytes.
const LONGEST_PLAIN: usize = 16 * 1024;

/// Accepts TLS only.
#[derive(Clone)]
pub struct TlsOnly {
    acceptor: TlsAcceptor,
    rng: Arc<dyn Rng>,
}

impl TlsOnly {
    /// Accepts with this configuration; `rng` makes request ids for those who are refused.
    pub fn new(acceptor: TlsAcceptor, rng: Arc<dyn Rng>) -> Self {
        Self { acceptor, rng }
    }
}

impl<S: Send + 'static> Accept<TcpStream, S> for TlsOnly {
    type Stream = BufReader<TlsStream<TcpStream>>;
    type Service = S;
    type Future = Pin<Box<dyn Future<Output = io::Result<(Self::Stream, S)>> + Send>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let Self { acceptor, rng } = self.clone();
        Box::pin(async move {
            let shake = async {
                stream.set_nodelay(true)?;
                let mut first = [0];
                if stream.peek(&mut first).await? == 1 && first[0] != HANDSHAKE {
                    refuse_plain(stream, rng.as_ref()).await?;
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "plain HTTP"));
                }
                // Who shakes hands and then says nothing would be waited for without end.
                let mut stream = BufReader::new(acceptor.accept(stream).await?);
                stream.fill_buf().await?;
                Ok(stream)
            };
            let stream = timeout(PATIENCE, shake).await.map_err(|_| io::ErrorKind::TimedOut)??;
            Ok((stream, service))
        })
    }
}

/// Accepts plain HTTP, for proxies that terminate TLS.
#[derive(Clone)]
pub struct ForProxies;

impl<S: Send + 'static> Accept<TcpStream, S> for ForProxies {
    type Stream = BufReader<TcpStream>;
    type Service = S;
    type Future = Pin<Box<dyn Future<Output = io::Result<(Self::Stream, S)>> + Send>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        Box::pin(async move {
            stream.set_nodelay(true)?;
            // Who connects and then says nothing would be waited for without end.
            let mut stream = BufReader::new(stream);
            timeout(PATIENCE, stream.fill_buf()).await.map_err(|_| io::ErrorKind::TimedOut)??;
            Ok((stream, service))
        })
    }
}

/// Reads the head of the request, so that the answer is not lost to a reset, and answers.
async fn refuse_plain(mut stream: TcpStream, rng: &dyn Rng) -> io::Result<()> {
    let mut request = Vec::new();
    let mut buffer = [0; 2048];
    while request.len() < LONGEST_PLAIN && !request.windows(4).any(|window| window == b"\r\n\r\n") {
        match stream.read(&mut buffer).await? {
            0 => break,
            read => request.extend_from_slice(&buffer[..read]),
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
