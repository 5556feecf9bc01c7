//! A service whose responses never end, and a client that reads such a response through Envoy.

use countersign_tests::http::HttpClient;
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

const INTERVAL: Duration = Duration::from_millis(10);

/// A service that writes numbered lines for as long as the connection is open. It accepts the upgrade to `WebSocket`, and
/// writes its lines without the framing, which Envoy does not read.
pub struct TickingService {
    /// Port on loopback.
    pub port: u16,
    ticks: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl TickingService {
    /// Starts the service.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let ticks = Arc::new(AtomicUsize::new(0));
        let counter = ticks.clone();
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(serve(stream, counter.clone()));
            }
        });
        Self { port, ticks, task }
    }

    /// The number of the last line that the service wrote, in any response.
    pub fn last_tick(&self) -> usize {
        self.ticks.load(Ordering::SeqCst)
    }
}

impl Drop for TickingService {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(mut stream: TcpStream, ticks: Arc<AtomicUsize>) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let is_upgrade = String::from_utf8_lossy(&head).to_lowercase().contains("\r\nupgrade: websocket\r\n");
    let answer = if is_upgrade {
        "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
    } else {
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    };
    stream.write_all(answer.as_bytes()).await?;
    loop {
        let line = format!("tick {}\n", ticks.fetch_add(1, Ordering::SeqCst) + 1);
        let chunk = if is_upgrade { line } else { format!("{:x}\r\n{line}\r\n", line.len()) };
        stream.write_all(chunk.as_bytes()).await?;
        tokio::time::sleep(INTERVAL).await;
    }
}

/// A response of the service that is being read.
pub struct OpenStream {
    stream: BufReader<TcpStream>,
    /// The status line.
    pub status: String,
}

impl OpenStream {
    /// Sends a request, and reads the status line of the response.
    pub async fn open(listener: &HttpClient, path: &str, headers: &[(&str, &str)]) -> Self {
        let stream = TcpStream::connect(listener.url.strip_prefix("http://").unwrap()).await.unwrap();
        let mut stream = BufReader::new(stream);
        let mut request = format!("GET {path} HTTP/1.1\r\nhost: service\r\n");
        for (name, value) in headers {
            request.extend([name, ": ", value, "\r\n"]);
        }
        request.push_str("\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut status = String::new();
        stream.read_line(&mut status).await.unwrap();
        Self { stream, status }
    }

    /// The number of the next line of the service; `None` if the stream has ended.
    pub async fn next_tick(&mut self) -> Option<usize> {
        loop {
            let mut line = String::new();
            let length = self.stream.read_line(&mut line).await.unwrap_or(0);
            if length == 0 {
                return None;
            }
            if let Some(number) = line.trim().strip_prefix("tick ") {
                return Some(number.parse().unwrap());
            }
        }
    }

    /// Reads until the stream ends. Returns the number of lines.
    pub async fn read_to_end(&mut self) -> usize {
        let mut count = 0;
        while self.next_tick().await.is_some() {
            count += 1;
        }
        count
    }
}
