//! Measures the duration and the outcome of transactions.

use crate::metrics::{StoreMetrics, TransactionKind, TransactionOutcome};
use countersign_process::Clock;
use std::{sync::Arc, time::Duration};

/// Records a transaction in the metrics when dropped. Until [`Self::set_outcome`], its outcome is [`TransactionOutcome::Failed`].
pub struct TransactionTimer {
    backend: &'static str,
    kind: TransactionKind,
    outcome: TransactionOutcome,
    started: Duration,
    clock: Arc<dyn Clock>,
    metrics: StoreMetrics,
}

impl TransactionTimer {
    /// Starts the timer. Call this before you acquire a connection, so that the duration includes the wait for it.
    pub fn start(backend: &'static str, kind: TransactionKind, clock: &Arc<dyn Clock>, metrics: &StoreMetrics) -> Self {
        let (started, clock, metrics) = (clock.since_boot(), Arc::clone(clock), metrics.clone());
        Self { backend, kind, outcome: TransactionOutcome::Failed, started, clock, metrics }
    }

    /// Records the time since the start of the timer as the wait for a connection.
    pub fn record_connection_wait(&self) {
        self.metrics.record_connection_wait(self.kind, self.elapsed_seconds());
    }

    fn elapsed_seconds(&self) -> f64 {
        self.clock.since_boot().saturating_sub(self.started).as_secs_f64()
    }

    /// Sets the outcome to record.
    pub const fn set_outcome(&mut self, outcome: TransactionOutcome) {
        self.outcome = outcome;
    }
}

impl Drop for TransactionTimer {
    fn drop(&mut self) {
        self.metrics.record(self.backend, self.kind, self.outcome, self.elapsed_seconds());
    }
}
