//! Graceful shutdown: after SIGTERM or SIGINT, servers accept no new requests and finish the requests in progress.
//! After [`DRAIN_TIMEOUT`], requests that are still in progress are aborted.
//!
//! Invariant: the process ends within 30 seconds. [`STOP_TIMEOUT`] bounds all asynchronous work, [`block_on`] bounds the wait for
//! blocked threads, and [`crate::FlushAtExit`] the wait for the reader of the log.

use std::{
    io::{self, IsTerminal},
    sync::{Arc, OnceLock},
    time::Duration,
};
use tokio::{
    runtime,
    signal::unix::{SignalKind, signal},
    time::{Instant, timeout_at},
};
use tokio_util::sync::CancellationToken;

/// The time that requests in progress have to finish after shutdown is requested.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(25);

/// The time from the request of shutdown until all work has ended, [`DRAIN_TIMEOUT`] included.
const STOP_TIMEOUT: Duration = Duration::from_secs(28);

/// How long the end of the process waits for blocked threads, for example in a DNS lookup or on a file system that hangs.
const BLOCKED_THREADS_TIMEOUT: Duration = Duration::from_secs(1);

/// Runs the future of `main` on a new multi-threaded runtime. Unlike `#[tokio::main]`, it does not wait for blocked threads at its end.
pub fn block_on<T>(future: impl Future<Output = T>) -> io::Result<T> {
    let runtime = runtime::Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(future);
    runtime.shutdown_timeout(BLOCKED_THREADS_TIMEOUT);
    Ok(result)
}

/// A shutdown request that all tasks of the process share.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    requested: CancellationToken,
    deadline: Arc<OnceLock<Instant>>,
}

impl Shutdown {
    /// Returns a handle that SIGTERM and SIGINT trigger. If the process has a terminal, SIGHUP does too: the terminal was closed. Without
    /// a terminal, SIGHUP is ignored: scripts send it after they have replaced a certificate, which needs no signal.
    pub fn on_signals() -> std::io::Result<Self> {
        let shutdown = Self::default();
        let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let mut hang_up = signal(SignalKind::hangup())?;
        let triggered = shutdown.clone();
        let has_terminal = io::stdin().is_terminal();
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = terminate.recv() => break,
                    _ = interrupt.recv() => break,
                    _ = hang_up.recv() => if has_terminal { break } else { tracing::info!("SIGHUP is ignored: changed files are loaded without a signal") },
                }
            }
            triggered.trigger();
            tracing::info!("shutting down");
        });
        Ok(shutdown)
    }

    /// Requests shutdown. [`STOP_TIMEOUT`] begins with the first request.
    pub fn trigger(&self) {
        let _deadline = self.deadline();
        self.requested.cancel();
    }

    #[expect(clippy::disallowed_methods, reason = "the deadline is a time of the runtime's timer")]
    fn deadline(&self) -> Instant {
        *self.deadline.get_or_init(|| Instant::now() + STOP_TIMEOUT)
    }

    /// Runs the last work of the process. Returns `None` if it lasts longer than [`STOP_TIMEOUT`] after the request of shutdown, or
    /// after this call if nobody requested one.
    pub async fn run_until_deadline<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        timeout_at(self.deadline(), future).await.ok()
    }

    /// Whether shutdown was requested.
    pub fn is_requested(&self) -> bool {
        self.requested.is_cancelled()
    }

    /// Waits until shutdown is requested.
    pub async fn requested(&self) {
        self.requested.cancelled().await;
    }

    /// Runs a future to its end, or returns `None` as soon as shutdown is requested.
    pub async fn run_until_requested<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        self.requested.run_until_cancelled(future).await
    }

    /// Like [`Self::requested`], as a `'static` future.
    pub fn requested_owned(&self) -> impl Future<Output = ()> + Send + 'static {
        self.requested.clone().cancelled_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{future, sync::mpsc, thread};

    #[tokio::test]
    #[expect(clippy::disallowed_methods, reason = "the deadline is a time of the runtime's timer")]
    async fn last_work_ends_at_the_deadline_of_the_first_request() {
        let shutdown = Shutdown::default();
        shutdown.deadline.set(Instant::now()).unwrap();
        shutdown.trigger();
        assert_eq!(shutdown.run_until_deadline(future::pending::<()>()).await, None);
        let later = Shutdown::default();
        later.trigger();
        assert_eq!(later.run_until_deadline(async { 1 }).await, Some(1));
    }

    #[test]
    fn threads_that_block_do_not_delay_the_end() {
        let (release, released) = mpsc::channel::<()>();
        let (report, reported) = mpsc::channel();
        thread::spawn(move || {
            let result = block_on(async {
                let (start, started) = tokio::sync::oneshot::channel();
                tokio::task::spawn_blocking(move || {
                    start.send(()).unwrap();
                    released.recv()
                });
                started.await
            });
            report.send(result.is_ok())
        });
        assert_eq!(reported.recv_timeout(Duration::from_secs(20)), Ok(true));
        drop(release);
    }
}
