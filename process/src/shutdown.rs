//! Graceful shutdown: SIGTERM or SIGINT requests it, servers drain, and remaining requests are cut after
//! [`DRAIN_TIMEOUT`].

use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// How long requests in progress may take after shutdown is requested.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(25);

/// The shutdown request, shared by all tasks.
#[derive(Debug, Clone, Default)]
pub struct Shutdown(CancellationToken);

impl Shutdown {
    /// Listens for SIGTERM and SIGINT.
    pub fn on_signals() -> std::io::Result<Self> {
        let shutdown = Self::default();
        let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let on_signal = shutdown.clone();
        tokio::spawn(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            on_signal.trigger();
            tracing::info!("shutting down");
        });
        Ok(shutdown)
    }

    /// Requests shutdown.
    pub fn trigger(&self) {
        self.0.cancel();
    }

    /// Waits until shutdown is requested.
    pub async fn requested(&self) {
        self.0.cancelled().await;
    }

    /// Like [`Self::requested`], as a `'static` future.
    pub fn requested_owned(&self) -> impl Future<Output = ()> + Send + 'static {
        self.0.clone().cancelled_owned()
    }
}
