//! What the dispatcher reports about itself: when it last polled the queue, and how old the oldest delivery is.

use crate::{
    domain::webhook::health::QueueHealth,
    metrics::WebhookMetrics,
    store::{Store, StoreError, deliveries, webhook_targets},
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

/// Stands for no timestamp in an atomic.
const NONE: i64 = i64::MIN;

/// Written by the dispatcher and by [`Self::measure_backlog`], read by `/health`.
pub struct DispatcherHealth {
    clock: Arc<dyn Clock>,
    /// Time of the last poll, in milliseconds of the boot-time clock.
    polled_at: AtomicU64,
    /// Due time of the oldest delivery that can be made, in microseconds since the Unix epoch.
    oldest_due: AtomicI64,
}

impl DispatcherHealth {
    /// Starts as if the dispatcher had just polled.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let health = Self { clock, polled_at: AtomicU64::new(0), oldest_due: AtomicI64::new(NONE) };
        health.record_poll();
        health
    }

    /// Records that the dispatcher stored all outcomes and polled the queue.
    pub(super) fn record_poll(&self) {
        self.polled_at.store(self.boot_millis(), Ordering::Relaxed);
    }

    /// Current health.
    pub fn current(&self) -> QueueHealth {
        let last_poll = self.boot_millis().saturating_sub(self.polled_at.load(Ordering::Relaxed));
        let oldest_due = self.oldest_due.load(Ordering::Relaxed);
        let age = |due| self.clock.now().duration_since(Timestamp::from_micros(due));
        QueueHealth::from_ages(Duration::from_millis(last_poll), (oldest_due != NONE).then(|| age(oldest_due)))
    }

    /// Reads the backlog from the database into this health and the metrics.
    pub async fn measure_backlog(&self, store: &Store, metrics: &WebhookMetrics) -> Result<(), StoreError> {
        let now = self.clock.now();
        let mut read = store.read().await?;
        let oldest_due = webhook_targets::oldest_due_time(read.conn(), now).await?;
        self.oldest_due.store(oldest_due.map_or(NONE, Timestamp::micros), Ordering::Relaxed);
        metrics.pending.set(deliveries::count_pending(read.conn()).await?);
        let since_epoch = |at: Timestamp| at.duration_since(Timestamp::from_micros(0)).as_secs_f64();
        metrics.oldest_due.set(oldest_due.map_or(0.0, since_epoch));
        Ok(())
    }

    fn boot_millis(&self) -> u64 {
        u64::try_from(self.clock.since_boot().as_millis()).unwrap_or(u64::MAX)
    }
}
