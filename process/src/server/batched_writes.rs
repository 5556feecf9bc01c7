//! A stream that writes HTTP/2 responses together if they are ready together.
//!
//! Each response has a task, which wakes the task of the connection. Tokio runs the woken task next, so it would write each response alone.
//! Instead, before its first write, the connection lets all other ready tasks run, and then writes all their responses.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

pub(super) struct BatchedWrites<S> {
    stream: Pin<Box<S>>,
    /// Whether other tasks have run since the last flush.
    others_have_run: bool,
}

impl<S> BatchedWrites<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream: Box::pin(stream), others_have_run: false }
    }
}

impl<S: AsyncRead> AsyncRead for BatchedWrites<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_read(context, into)
    }
}

/// This stream offers no vectored writes: with them, h2 would write each response of more than 256 bytes alone. Without them, h2
/// copies up to 1,024 bytes of each response into one buffer.
impl<S: AsyncWrite> AsyncWrite for BatchedWrites<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        if !std::mem::replace(&mut self.others_have_run, true) {
            // A task that wakes itself runs after all tasks that are ready.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.stream.as_mut().poll_write(context, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.others_have_run = false;
        self.stream.as_mut().poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    };
    use tokio::io::{AsyncWriteExt as _, duplex};

    #[tokio::test]
    async fn tasks_that_are_ready_run_before_the_first_write_after_a_flush() {
        let (ours, _theirs) = duplex(1024);
        let mut stream = BatchedWrites::new(ours);
        assert!(!stream.is_write_vectored());
        let runs = Arc::new(AtomicUsize::new(0));
        let ready_task = || {
            let runs = Arc::clone(&runs);
            tokio::spawn(async move { runs.fetch_add(1, SeqCst) })
        };
        for expected in [1, 2] {
            ready_task();
            stream.write_all(b"a").await.unwrap();
            assert_eq!(runs.load(SeqCst), expected);
            let last = ready_task();
            stream.write_all(b"b").await.unwrap();
            assert_eq!(runs.load(SeqCst), expected, "a further write must not wait");
            stream.flush().await.unwrap();
            last.await.unwrap();
            runs.store(expected, SeqCst);
        }
    }
}
