//! Measures the duration and the outcome of transactions.

use crate::metrics::{Ended, Kind, StoreMetrics};
use countersign_process::Clock;
use std::{sync::Arc, time::Duration};

/// Records a transaction in the metrics when dropped. The outcome is [`Ended::Failed`] until another one is set.
pub struct TransactionTimer {
    backend: &'static str,
    kind: Kind,
    outcome: Ended,
    started: Duration,
    clock: Arc<dyn Clock>,
    metrics: StoreMetrics,
}

impl TransactionTimer {
    /// Starts the timer. Call it before acquiring a connection, so that the wait is included.
    pub fn start(backend: &'static str, kind: Kind, clock: &Arc<dyn Clock>, metrics: &StoreMetrics) -> Self {
        let (started, clock, metrics) = (clock.since_boot(), Arc::clone(clock), metrics.clone());
        Self { backend, kind, outcome: Ended::Failed, started, clock, metrics }
    }

    /// Sets the outcome to record.
    pub const fn set_outcome(&mut self, outcome: Ended) {
        self.outcome = outcome;
    }
}

impl Drop for TransactionTimer {
    fn drop(&mut self) {
        let seconds = self.clock.since_boot().saturating_sub(self.started).as_secs_f64();
        self.metrics.note(self.backend, self.kind, self.outcome, seconds);
    }
}
