//! Many raw requests over a few connections that stay open.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
};

/// The number of connections of a batch.
const CONNECTIONS: usize = 16;

/// How often a request is repeated when the connection closes or the sidecar does not respond in time.
const ATTEMPTS: usize = 20;

#[derive(Debug, Clone)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// Status line and headers.
    head: String,
    pub body: String,
}

impl Answer {
    /// A response header by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let named = |line: &'_ str| line.split_once(": ").is_some_and(|(it, _)| it.eq_ignore_ascii_case(name));
        self.head.split("\r\n").find(|line| named(line)).and_then(|line| Some(line.split_once(": ")?.1))
    }
}

/// Sends a GET request for each target, and returns the responses in the same order.
pub async fn send_all(address: &str, host: &str, token: Option<&str>, targets: &[Vec<u8>]) -> Vec<Answer> {
    let authorization = token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
    let headers = format!(" HTTP/1.1\r\nhost: {host}\r\n{authorization}\r\n");
    let mut connections = JoinSet::new();
    for first in 0..CONNECTIONS {
        let part: Vec<_> = targets.iter().enumerate().skip(first).step_by(CONNECTIONS).collect();
        let part: Vec<_> = part
            .into_iter()
            .map(|(index, target)| (index, [b"GET ".as_slice(), target, headers.as_bytes()].concat()))
            .collect();
        let address = address.to_owned();
        connections.spawn(async move {
            let mut connection = Connection { address, stream: None };
            let mut answers = Vec::new();
            for (index, request) in part {
                answers.push((index, connection.exchange(&request).await));
            }
            answers
        });
    }
    let mut answers: Vec<_> = connections.join_all().await.into_iter().flatten().collect();
    answers.sort_by_key(|(index, _)| *index);
    assert_eq!(answers.len(), targets.len());
    answers.into_iter().map(|(_, answer)| answer).collect()
}

struct Connection {
    address: String,
    stream: Option<TcpStream>,
}

impl Connection {
    async fn exchange(&mut self, request: &[u8]) -> Answer {
        for _ in 0..ATTEMPTS {
            match self.try_exchange(request).await {
                // On a busy machine, the sidecar may not respond before the timeout of Envoy.
                Some(answer) if answer.status != 503 => return answer,
                Some(_) | None => {}
            }
        }
        panic!("no response to {}", String::from_utf8_lossy(request))
    }

    async fn try_exchange(&mut self, request: &[u8]) -> Option<Answer> {
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => TcpStream::connect(&self.address).await.unwrap(),
        };
        stream.write_all(request).await.ok()?;
        let mut bytes = Vec::with_capacity(1024);
        loop {
            let read = stream.read_buf(&mut bytes).await.ok()?;
            if let Some(answer) = parse(&bytes) {
                if answer.header("connection") != Some("close") {
                    self.stream = Some(stream);
                }
                return Some(answer);
            }
            if read == 0 {
                return None;
            }
        }
    }
}

/// Parses a response with a `content-length`; `None` if the response is incomplete.
fn parse(bytes: &[u8]) -> Option<Answer> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let status = head.split(' ').nth(1)?.parse().unwrap();
    let mut answer = Answer { status, head, body: String::new() };
    let length = answer.header("content-length").map_or(0, |length| length.parse().unwrap());
    answer.body = String::from_utf8_lossy(bytes[end + 4..].get(..length)?).into_owned();
    Some(answer)
}
