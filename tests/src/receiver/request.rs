//! A recorded request.

use countersign_process::{Clock, SystemClock};
use serde_json::Value;
use std::time::Duration;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt};

/// A request with the exact bytes of its body.
#[derive(Debug, Clone)]
pub struct Received {
    /// Time since boot at which the receiver had read the whole request.
    pub at: Duration,
    /// The request line.
    pub line: String,
    /// Headers in order of arrival, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

impl Received {
    /// Reads a request; `None` if the peer has closed the connection.
    pub(super) async fn read(stream: &mut (impl AsyncBufRead + Unpin)) -> Option<Self> {
        let line = read_line(stream).await?;
        let mut headers = Vec::new();
        loop {
            let header = read_line(stream).await?;
            if header.is_empty() {
                break;
            }
            let (name, value) = header.split_once(':').expect("a header has a colon");
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let mut received = Self { at: Duration::ZERO, line, headers, body: Vec::new() };
        assert_eq!(received.header("transfer-encoding"), "", "a webhook request has a content-length");
        received.body = vec![0; received.header("content-length").parse().unwrap_or(0)];
        stream.read_exact(&mut received.body).await.ok()?;
        received.at = SystemClock.since_boot();
        Some(received)
    }

    /// A header; empty if absent.
    pub fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(header, _)| header == name).map_or("", |(_, value)| value)
    }

    /// Replaces the value of a header.
    pub fn with_header(mut self, name: &str, value: &str) -> Self {
        let (_, header) =
            self.headers.iter_mut().find(|(header, _)| header == name).expect("the request has the header");
        value.clone_into(header);
        self
    }

    /// Event id.
    pub fn id(&self) -> &str {
        self.header("webhook-id")
    }

    /// Body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("the text is JSON")
    }

    /// The field `data` of the body.
    pub fn data(&self) -> Value {
        self.json()["data"].take()
    }
}

async fn read_line(stream: &mut (impl AsyncBufRead + Unpin)) -> Option<String> {
    let mut line = String::new();
    let read = stream.read_line(&mut line).await.ok()?;
    (read > 0).then(|| line.trim_end_matches(['\r', '\n']).to_owned())
}
