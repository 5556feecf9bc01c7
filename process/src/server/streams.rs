//! Runs each HTTP/2 stream in a task of its own, and ends a stream whose client keeps it waiting for too long.
//!
//! hyper polls the body of a response only after the client has taken the previous part. So a timer in the body would not run,
//! and the timer is around the whole stream. Dropping the future of a stream resets the stream and drops its data; the other
//! streams of the connection go on. A stream that never waits for its client starts no timer.
//!
//! If the handlers of a port never wait, the connection polls a stream before it gets a task, and almost all streams end in this
//! poll. All streams that arrived together are polled before their responses are written, so these need one system call.

use pin_project_lite::pin_project;
use std::{
    cell::Cell,
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
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

/// Runs the streams of a connection.
#[derive(Clone)]
pub(super) struct StreamExecutor {
    /// `None` if streams may wait for their clients without end.
    pub(super) timeouts: Option<StreamTimeouts>,
    /// `None` if each stream has a task from its beginning.
    pub(super) queue: Option<StreamQueue>,
}

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for StreamExecutor {
    fn execute(&self, stream: F) {
        // The connection does not wait for the task: hyper tells it when the stream has ended.
        match (&self.queue, self.timeouts) {
            (Some(queue), Some(timeouts)) => queue.push(timeouts.apply_to(stream)),
            (Some(queue), None) => queue.push(stream),
            (None, Some(timeouts)) => drop(tokio::spawn(timeouts.apply_to(stream))),
            (None, None) => drop(tokio::spawn(stream)),
        }
    }
}

/// The streams of a connection that have begun and were not polled.
#[derive(Clone, Default)]
pub(super) struct StreamQueue(Arc<Mutex<Vec<BoxedStream>>>);

type BoxedStream = Pin<Box<dyn Future<Output = ()> + Send>>;

impl StreamQueue {
    fn push(&self, stream: impl Future<Output = ()> + Send + 'static) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Box::pin(stream));
    }

    /// Runs a connection and the streams that it puts into the queue.
    pub(super) async fn run<C: Future>(&self, mut connection: Pin<&mut C>) -> C::Output {
        poll_fn(|context| {
            loop {
                let polled = connection.as_mut().poll(context);
                // The connection is polled again, because it must send what the streams have answered.
                if polled.is_ready() || !self.poll_streams(context) {
                    return polled;
                }
            }
        })
        .await
    }

    /// Polls each stream once. A stream that has not ended gets a task. Returns whether there were streams.
    fn poll_streams(&self, context: &mut Context<'_>) -> bool {
        let mut streams = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let are_any = !streams.is_empty();
        for mut stream in streams.drain(..) {
            // A panic ends only this stream, as it would in a task.
            let polled = catch_unwind(AssertUnwindSafe(|| stream.as_mut().poll(context)));
            if matches!(polled, Ok(Poll::Pending)) {
                tokio::spawn(stream);
            }
        }
        are_any
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

    /// A connection that begins three streams ends when all of them have ended: one that never waits, one that waits, and one
    /// that panics.
    #[tokio::test]
    async fn streams_of_a_queue_end_in_the_connection_or_in_a_task() {
        let queue = StreamQueue::default();
        let (sender, mut ended) = tokio::sync::mpsc::unbounded_channel();
        let waits = sender.clone();
        let connection = async {
            queue.push(async { panic!("one stream panics") });
            queue.push(async move {
                tokio::task::yield_now().await;
                waits.send("waits").unwrap();
            });
            queue.push(async move { sender.send("never waits").unwrap() });
            [ended.recv().await, ended.recv().await, ended.recv().await]
        };
        let ended = queue.run(std::pin::pin!(connection)).await;
        assert_eq!(ended, [Some("never waits"), Some("waits"), None]);
    }
}
