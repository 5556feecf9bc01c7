//! The health of the dispatcher: the time of its last poll, and the age of the oldest due delivery or waiting event.

use super::delivery_queue::TARGETS_PER_PAGE;
use crate::{
    domain::webhook::health::QueueHealth,
    metrics::{WebhookMetrics, timestamp_value},
    store::{Store, StoreError, deliveries, due_targets, outbox},
};
use countersign_identity::Timestamp;
use countersign_process::Clock;
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// The health of the dispatcher. The dispatcher and [`Self::measure_backlog`] update it; `/health` reports it.
pub struct DispatcherHealth {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

struct State {
    /// Time of the last poll, since boot.
    polled_at: Duration,
    /// When the oldest due delivery became due, or when the oldest event occurred that waits for its fan-out, if that is earlier.
    oldest_due: Option<Timestamp>,
}

impl DispatcherHealth {
    /// Creates the health of a dispatcher that has polled just now.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let state = State { polled_at: clock.since_boot(), oldest_due: None };
        Self { clock, state: Mutex::new(state) }
    }

    /// Records that the dispatcher stored all outcomes and polled the queue.
    pub(super) fn mark_polled(&self) {
        self.state().polled_at = self.clock.since_boot();
    }

    pub fn current(&self) -> QueueHealth {
        let State { polled_at, oldest_due } = *self.state();
        let age = oldest_due.map(|due| self.clock.now().duration_since(due));
        QueueHealth::from_ages(self.clock.since_boot().saturating_sub(polled_at), age)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the backlog from the database, and updates the health of the dispatcher and the metrics.
    pub async fn measure_backlog(&self, store: &Store, metrics: &WebhookMetrics) -> Result<(), StoreError> {
        let now = self.clock.now();
        let (mut oldest_due, mut after) = (outbox::oldest_event_time(store.read().await?.conn()).await?, None);
        loop {
            let mut read = store.read().await?;
            let page = due_targets::oldest_due_time(read.conn(), after, now, TARGETS_PER_PAGE).await?;
            oldest_due = oldest_due.into_iter().chain(page.content).min();
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        self.state().oldest_due = oldest_due;
        metrics.pending.set(deliveries::count_pending(store.read().await?.conn()).await?);
        metrics.oldest_due.set(timestamp_value(oldest_due));
        Ok(())
    }
}
