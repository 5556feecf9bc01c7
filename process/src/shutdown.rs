//! Graceful shutdown: after SIGTERM or SIGINT, servers accept no new requests and finish the requests in progress.
//! After [`DRAIN_TIMEOUT`], requests that are still in progress are aborted.

use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// The time that requests in progress have to finish after shutdown is requested.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(25);

/// A shutdown request that all tasks of the process share.
#[derive(Debug, Clone, Default)]
pub struct Shutdown(CancellationToken);

impl Shutdown {
    /// Returns a handle that SIGTERM and SIGINT trigger.
    pub fn on_signals() -> std::io::Result<Self> {
        let shutdown = Self::default();
        let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let triggered = shutdown.clone();
        tokio::spawn(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            triggered.trigger();
            tracing::info!("shutting down");
        });
        Ok(shutdown)
    }

    /// Requests shutdown.
    pub fn trigger(&self) {
        self.0.cancel();
    }

    /// Whether shutdown was requested.
    pub fn is_requested(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Waits until shutdown is requested.
    pub async fn requested(&self) {
        self.0.cancelled().await;
    }

    /// Runs a future to its end, or returns `None` as soon as shutdown is requested.
    pub async fn run_until_requested<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        self.0.run_until_cancelled(future).await
    }

    /// Like [`Self::requested`], as a `'static` future.
    pub fn requested_owned(&self) -> impl Future<Output = ()> + Send + 'static {
        self.0.clone().cancelled_owned()
    }
}
