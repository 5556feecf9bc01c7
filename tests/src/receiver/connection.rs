//! Serves a connection to a receiver.

use super::{Received, Reply, Shared};
use std::{sync::atomic::Ordering::SeqCst, time::Duration};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};

const SECOND: Duration = Duration::from_secs(1);

/// The `content-length` of slow and truncated bodies.
const DECLARED_LENGTH: usize = 1_000_000;

/// Records requests and replies to them until one side closes the connection.
pub(super) async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin, shared: &Shared) {
    let mut stream = BufReader::new(stream);
    while let Some(received) = Received::read(&mut stream).await {
        // Subscribe before the first reply is read, so that this connection misses no change of the reply.
        let mut changes = shared.changes.subscribe();
        let earlier = shared.store(&received);
        let mut reply = shared.reply(&received, earlier);
        loop {
            match reply {
                Reply::Delayed(delay, next) => {
                    tokio::time::sleep(delay).await;
                    reply = *next;
                }
                Reply::Pending => {
                    let _receiver_dropped = changes.changed().await;
                    reply = shared.reply(&received, earlier);
                }
                _ => break,
            }
        }
        if !send_reply(&mut stream, reply, shared).await {
            break;
        }
    }
    let _already_closed = stream.shutdown().await;
}

/// Sends a reply, and returns whether the connection stays usable.
async fn send_reply(
    stream: &mut BufReader<impl AsyncRead + AsyncWrite + Unpin>,
    reply: Reply,
    shared: &Shared,
) -> bool {
    match reply {
        Reply::Status(status) => return write(stream, &full_response(status, &[], "")).await,
        Reply::Full(status, headers, body) => return write(stream, &full_response(status, &headers, &body)).await,
        Reply::Delayed(..) | Reply::Pending => unreachable!("`serve` waits for delayed and pending replies"),
        Reply::Close => return false,
        Reply::Truncated => {
            let truncated = format!("{}half", head(200, &[], DECLARED_LENGTH));
            write(stream, truncated.as_bytes()).await;
            return false;
        }
        Reply::Never => wait_for_close(stream).await,
        Reply::SlowHeaders => send_slowly(stream, &head(200, &[("x-slow", "slow ".repeat(100))], 0)).await,
        Reply::SlowBody => {
            write(stream, head(200, &[], DECLARED_LENGTH).as_bytes()).await;
            send_slowly(stream, &"slow ".repeat(DECLARED_LENGTH / 5)).await;
        }
        Reply::Endless(status) => send_endlessly(stream, status, shared).await,
    }
    shared.record_disconnect();
    false
}

fn head(status: u16, headers: &[(&'static str, String)], length: usize) -> String {
    let status = [format!("HTTP/1.1 {status} Test")];
    let headers = headers.iter().map(|(name, value)| format!("{name}: {value}"));
    let lines: Vec<_> = status.into_iter().chain(headers).collect();
    format!("{}\r\ncontent-length: {length}\r\n\r\n", lines.join("\r\n"))
}

fn full_response(status: u16, headers: &[(&'static str, String)], body: &str) -> Vec<u8> {
    [head(status, headers, body.len()).as_bytes(), body.as_bytes()].concat()
}

async fn write(stream: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> bool {
    stream.write_all(bytes).await.is_ok() && stream.flush().await.is_ok()
}

async fn wait_for_close(stream: &mut (impl AsyncRead + Unpin)) {
    let mut buffer = [0; 64];
    while stream.read(&mut buffer).await.is_ok_and(|read| read > 0) {}
}

/// Sends one byte per second until the peer closes the connection or the whole text is sent.
async fn send_slowly(stream: &mut BufReader<impl AsyncRead + AsyncWrite + Unpin>, text: &str) {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let sending = async {
        for byte in text.bytes() {
            if !write(&mut writer, &[byte]).await {
                break;
            }
            tokio::time::sleep(SECOND).await;
        }
    };
    tokio::select! {
        () = wait_for_close(&mut reader) => {}
        () = sending => {}
    }
}

/// Sends an endless body until the peer closes the connection.
async fn send_endlessly(stream: &mut (impl AsyncWrite + Unpin), status: u16, shared: &Shared) {
    let chunk = vec![b'x'; 16 * 1024];
    let head = format!("HTTP/1.1 {status} Test\r\nconnection: close\r\n\r\n");
    let mut connected = write(stream, head.as_bytes()).await;
    while connected {
        connected = write(stream, &chunk).await;
        shared.endless_bytes_sent.fetch_add(chunk.len() as u64, SeqCst);
    }
}
