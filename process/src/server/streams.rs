//! Runs each HTTP/2 stream in a task of its own, and ends a stream whose client keeps it waiting for too long.
//!
//! hyper polls the body of a response only after the client has taken the previous part. So a timer in the body would not run,
//! and the timer is around the whole stream. Dropping the future of a stream resets the stream and drops its data; the other
//! streams of the connection go on. A stream that never waits for its client starts no timer.

use pin_project_lite::pin_project;
use std::{
    cell::Cell,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    task_local,
    time::{Sleep, sleep},
};

/// How long a client may keep a stream waiting.
#[derive(Debug, Clone, Copy)]
pub(super) struct StreamTimeouts {
    /// Without any progress.
    pub(super) stall: Duration,
    /// In total, until the stream waits for this server again. Otherwise a client could take one part at a time.
    pub(super) total: Duration,
}

impl StreamTimeouts {
    fn apply_to<F>(self, stream: F) -> TimedStream<F> {
        TimedStream { stream, timeouts: self, stall: None, total: None }
    }
}

task_local! {
    /// What the last poll of the current stream has learned.
    static WAIT: Cell<Wait>;
}

/// What a stream waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    /// The same as before.
    Unchanged,
    /// This server.
    Server,
    /// The client.
    Client,
    /// The client, which has just sent a part of the request or taken a part of the response.
    Progress,
}

/// Records what the current stream waits for. Has no effect in HTTP/1.1, where the connection has only one request.
pub(super) fn record_wait(wait: Wait) {
    let _http1 = WAIT.try_with(|current| current.set(wait));
}

/// Runs the streams of the connections of a port.
#[derive(Debug, Clone, Copy)]
pub(super) struct StreamExecutor {
    /// `None` if streams may wait for their clients without end.
    pub(super) timeouts: Option<StreamTimeouts>,
}

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for StreamExecutor {
    fn execute(&self, stream: F) {
        // The connection does not wait for the task: hyper tells it when the stream has ended.
        match self.timeouts {
            Some(timeouts) => tokio::spawn(timeouts.apply_to(stream)),
            None => tokio::spawn(stream),
        };
    }
}

pin_project! {
    /// A stream that ends when its client has kept it waiting for too long.
    struct TimedStream<F> {
        #[pin]
        stream: F,
        timeouts: StreamTimeouts,
        // Runs while the stream waits for its client, since the last progress.
        #[pin]
        stall: Option<Sleep>,
        // Runs while the stream waits for its client, whether there is progress or not.
        #[pin]
        total: Option<Sleep>,
    }
}

impl<F: Future<Output = ()>> Future for TimedStream<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        let poll = || (this.stream.poll(context), WAIT.with(Cell::get));
        let (ended, wait) = WAIT.sync_scope(Cell::new(Wait::Unchanged), poll);
        if ended.is_ready() {
            return Poll::Ready(());
        }
        match wait {
            Wait::Unchanged => {}
            Wait::Server => {
                this.stall.set(None);
                this.total.set(None);
            }
            Wait::Client | Wait::Progress => {
                if wait == Wait::Progress || this.stall.is_none() {
                    this.stall.set(Some(sleep(this.timeouts.stall)));
                }
                if this.total.is_none() {
                    this.total.set(Some(sleep(this.timeouts.total)));
                }
            }
        }
        let mut is_over = |timer: Option<Pin<&mut Sleep>>| timer.is_some_and(|timer| timer.poll(context).is_ready());
        if is_over(this.stall.as_pin_mut()) || is_over(this.total.as_pin_mut()) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::timeout;

    const LONG: Duration = Duration::from_hours(1);
    const SHORT: Duration = Duration::from_millis(50);

    /// Runs a stream that reports a wait, and then another wait again and again.
    async fn run(first: Wait, then: Wait, timeouts: StreamTimeouts) {
        let stream = async move {
            record_wait(first);
            loop {
                sleep(SHORT / 10).await;
                record_wait(then);
            }
        };
        timeouts.apply_to(stream).await;
    }

    #[tokio::test]
    async fn stream_ends_when_its_client_stalls() {
        use Wait::{Client, Progress, Server, Unchanged};
        let stall = StreamTimeouts { stall: SHORT, total: LONG };
        run(Progress, Unchanged, stall).await;
        run(Client, Client, stall).await;
        let total = StreamTimeouts { stall: LONG, total: SHORT };
        run(Progress, Progress, total).await;
        let both = StreamTimeouts { stall: SHORT, total: SHORT };
        for (first, then) in [(Unchanged, Unchanged), (Progress, Server)] {
            assert!(timeout(4 * SHORT, run(first, then, both)).await.is_err(), "the client keeps nothing waiting");
        }
    }
}
