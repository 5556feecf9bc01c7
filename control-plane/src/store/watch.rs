//! How long transactions take, and how they end.

use crate::metrics::{Ended, Kind, StoreMetrics};
use countersign_process::Clock;
use std::{sync::Arc, time::Duration};

/// Notes a transaction when it is dropped: as failed, unless something else was said.
pub struct Watch {
    backend: &'static str,
    kind: Kind,
    ended: Ended,
    began: Duration,
    clock: Arc<dyn Clock>,
    metrics: StoreMetrics,
}

impl Watch {
    /// Begins before the wait for a connection.
    pub fn begin(backend: &'static str, kind: Kind, clock: &Arc<dyn Clock>, metrics: &StoreMetrics) -> Self {
        let (began, clock, metrics) = (clock.since_boot(), Arc::clone(clock), metrics.clone());
        Self { backend, kind, ended: Ended::Failed, began, clock, metrics }
    }

    /// How it ends, as far as is known now.
    pub const fn ends(&mut self, ended: Ended) {
        self.ended = ended;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let seconds = self.clock.since_boot().saturating_sub(self.began).as_secs_f64();
        self.metrics.note(self.backend, self.kind, self.ended, seconds);
    }
}
