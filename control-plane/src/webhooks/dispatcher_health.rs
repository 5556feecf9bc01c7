//! The health of the dispatcher: the time of its last poll, and the age of the oldest due delivery.

use super::delivery_queue::TARGETS_PER_PAGE;
use crate::{
    domain::webhook::health::QueueHealth,
    metrics::{WebhookMetrics, timestamp_value},
    store::{Store, StoreError, deliveries, due_targets, outbox},
};
use countersign_identity::Timestamp;
use countersign_process::Clock;
use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

/// Represents a missing timestamp in an atomic integer.
const NO_TIMESTAMP: i64 = i64::MIN;

/// The health of the dispatcher. The dispatcher and [`Self::measure_backlog`] update the health; `/health` reports the health.
pub struct DispatcherHealth {
    clock: Arc<dyn Clock>,
    /// Time of the last poll, in milliseconds of the boot-time clock.
    polled_at: AtomicU64,
    /// When the oldest due delivery became due, in microseconds since the Unix epoch.
    oldest_due: AtomicI64,
}

impl DispatcherHealth {
    /// Creates the health of a dispatcher that has polled just now.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let health = Self { clock, polled_at: AtomicU64::new(0), oldest_due: AtomicI64::new(NO_TIMESTAMP) };
        health.mark_polled();
        health
    }

    /// Records that the dispatcher stored all outcomes and polled the queue.
    pub(super) fn mark_polled(&self) {
        self.polled_at.store(self.boot_millis(), Ordering::Relaxed);
    }

    /// Current health.
    pub fn current(&self) -> QueueHealth {
        let poll_age = self.boot_millis().saturating_sub(self.polled_at.load(Ordering::Relaxed));
        let oldest_due = self.oldest_due.load(Ordering::Relaxed);
        let age = |due| self.clock.now().duration_since(Timestamp::from_micros(due));
        QueueHealth::from_ages(Duration::from_millis(poll_age), (oldest_due != NO_TIMESTAMP).then(|| age(oldest_due)))
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
        self.oldest_due.store(oldest_due.map_or(NO_TIMESTAMP, Timestamp::micros), Ordering::Relaxed);
        metrics.pending.set(deliveries::count_pending(store.read().await?.conn()).await?);
        metrics.oldest_due.set(timestamp_value(oldest_due));
        Ok(())
    }

    fn boot_millis(&self) -> u64 {
        u64::try_from(self.clock.since_boot().as_millis()).unwrap_or(u64::MAX)
    }
}
