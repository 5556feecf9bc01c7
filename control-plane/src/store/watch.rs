//! How long transactions take, and how they end.

use crate::metrics::{StoreMetrics, TransactionKind, TransactionOutcome};
use countersign_process::Clock;
use std::{sync::Arc, time::Duration};

/// Notes a transaction when it is dropped: as failed, unless something else was said.
pub struct Watch {
    backend: &'static str,
    kind: TransactionKind,
    ended: TransactionOutcome,
    began: Duration,
    clock: Arc<dyn Clock>,
    metrics: StoreMetrics,
}

impl Watch {
    /// Begins before the wait for a connection.
    pub fn begin(backend: &'static str, kind: TransactionKind, clock: &Arc<dyn Clock>, metrics: &StoreMetrics) -> Self {
        let (began, clock, metrics) = (clock.since_boot(), Arc::clone(clock), metrics.clone());
        Self { backend, kind, ended: TransactionOutcome::Failed, began, clock, metrics }
    }

    /// Records the wait for a connection, which has ended, with a connection or without.
    pub fn connection_acquired(&self) {
        self.metrics.record_connection_wait(self.kind, self.seconds());
    }

    fn seconds(&self) -> f64 {
        self.clock.since_boot().saturating_sub(self.began).as_secs_f64()
    }

    /// How it ends, as far as is known now.
    pub const fn ends(&mut self, ended: TransactionOutcome) {
        self.ended = ended;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.metrics.record(self.backend, self.kind, self.ended, self.seconds());
    }
}
