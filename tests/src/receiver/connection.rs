//! One connection to a receiver: request after request, each answered as the receiver's manner has it.

use super::{Received, Reply, Shared};
use std::{sync::atomic::Ordering::SeqCst, time::Duration};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};

const SECOND: Duration = Duration::from_secs(1);

/// Where a body that drips, or is cut, says it will end.
const LONG: usize = 1_000_000;

/// Answers until one of the two hangs up.
pub(super) async fn attend(stream: impl AsyncRead + AsyncWrite + Unpin, shared: &Shared) {
    let mut stream = BufReader::new(stream);
    while let Some(received) = Received::read(&mut stream).await {
        // Before the first reply, so that no change is missed.
        let mut changes = shared.changes.subscribe();
        let before = shared.store(&received);
        let mut reply = shared.reply(&received, before);
        loop {
            match reply {
                Reply::After(pause, then) => {
                    tokio::time::sleep(pause).await;
                    reply = *then;
                }
                Reply::Held => {
                    let _receiver_dropped = changes.changed().await;
                    reply = shared.reply(&received, before);
                }
                _ => break,
            }
        }
        if !answer(&mut stream, reply, shared).await {
            break;
        }
    }
    let _hung_up = stream.shutdown().await;
}

/// Whether the connection can go on.
async fn answer(stream: &mut BufReader<impl AsyncRead + AsyncWrite + Unpin>, reply: Reply, shared: &Shared) -> bool {
    match reply {
        Reply::Status(status) => return write(stream, &whole(status, &[], "")).await,
        Reply::Full(status, headers, body) => return write(stream, &whole(status, &headers, &body)).await,
        Reply::After(..) | Reply::Held => unreachable!("it was waited for"),
        Reply::Close => return false,
        Reply::Truncated => {
            let half = format!("{}half", head(200, &[], LONG));
            write(stream, half.as_bytes()).await;
            return false;
        }
        Reply::Never => hung_up(stream).await,
        Reply::SlowHeaders => drip(stream, &head(200, &[("x-slow", "slow ".repeat(100))], 0)).await,
        Reply::SlowBody => {
            write(stream, head(200, &[], LONG).as_bytes()).await;
            drip(stream, &"slow ".repeat(LONG / 5)).await;
        }
        Reply::Endless(status) => pour(stream, status, shared).await,
    }
    shared.gave_up();
    false
}

fn head(status: u16, headers: &[(&'static str, String)], length: usize) -> String {
    let status = [format!("HTTP/1.1 {status} Said")];
    let headers = headers.iter().map(|(name, value)| format!("{name}: {value}"));
    let lines: Vec<_> = status.into_iter().chain(headers).collect();
    format!("{}\r\ncontent-length: {length}\r\n\r\n", lines.join("\r\n"))
}

fn whole(status: u16, headers: &[(&'static str, String)], body: &str) -> Vec<u8> {
    [head(status, headers, body.len()).as_bytes(), body.as_bytes()].concat()
}

async fn write(stream: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> bool {
    stream.write_all(bytes).await.is_ok() && stream.flush().await.is_ok()
}

/// Returns when the peer hangs up.
async fn hung_up(stream: &mut (impl AsyncRead + Unpin)) {
    let mut more = [0; 64];
    while stream.read(&mut more).await.is_ok_and(|read| read > 0) {}
}

/// Returns when the peer hangs up, or all is said.
async fn drip(stream: &mut BufReader<impl AsyncRead + AsyncWrite + Unpin>, text: &str) {
    let (mut from, mut to) = tokio::io::split(stream);
    let drops = async {
        for byte in text.bytes() {
            if !write(&mut to, &[byte]).await {
                break;
            }
            tokio::time::sleep(SECOND).await;
        }
    };
    tokio::select! {
        () = hung_up(&mut from) => {}
        () = drops => {}
    }
}

/// Writes until the peer hangs up.
async fn pour(stream: &mut (impl AsyncWrite + Unpin), status: u16, shared: &Shared) {
    let drops = vec![b'x'; 16 * 1024];
    let head = format!("HTTP/1.1 {status} Said\r\nconnection: close\r\n\r\n");
    let mut good = write(stream, head.as_bytes()).await;
    while good {
        good = write(stream, &drops).await;
        shared.sent.fetch_add(drops.len() as u64, SeqCst);
    }
}
