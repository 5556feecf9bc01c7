//! A graceful stop: SIGTERM or Ctrl-C asks, servers drain, and after [`DRAIN_TIMEOUT`] the rest is cut.

use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// How long requests under way may take after the stop was asked for.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(25);

/// Whether the process was asked to stop.
#[derive(Debug, Clone, Default)]
pub struct Shutdown(CancellationToken);

impl Shutdown {
    /// Listens for SIGTERM and SIGINT.
    pub fn on_signals() -> std::io::Result<Self> {
        let shutdown = Self::default();
        let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let asked = shutdown.clone();
        tokio::spawn(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            asked.trigger();
            tracing::info!("stopping");
        });
        Ok(shutdown)
    }

    /// Asks the process to stop.
    pub fn trigger(&self) {
        self.0.cancel();
    }

    /// Returns when the process was asked to stop.
    pub async fn requested(&self) {
        self.0.cancelled().await;
    }

    /// The same, as a future of its own.
    pub fn requested_owned(&self) -> impl Future<Output = ()> + Send + 'static {
        self.0.clone().cancelled_owned()
    }
}
