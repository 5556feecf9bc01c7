//! Whether events get away: what the courier shows of itself, and what it looks for from time to time.

use crate::{
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
use tokio::sync::Notify;

/// The courier looks for work at least this often, or something is wrong with it.
const SILENCE: Duration = Duration::from_secs(15);

/// An event that could be delivered waits no longer than this, or there are too many.
const BACKLOG: Duration = Duration::from_mins(5);

/// No instant.
const NONE: i64 = i64::MIN;

/// How the queue is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueHealth {
    /// Events get away.
    Up,
    /// They wait for long, although their targets take what they are sent.
    Behind,
    /// Nobody delivers.
    Down,
}

/// What the courier shows of itself.
pub struct Pulse {
    clock: Arc<dyn Clock>,
    /// Milliseconds since the machine started.
    looked_at: AtomicU64,
    /// Since when the oldest event waits that could be delivered.
    waiting_since: AtomicI64,
    /// Rung when there is something to deliver.
    bell: Notify,
}

impl Pulse {
    /// Begins as if the courier had just looked.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let bell = Notify::new();
        let pulse = Self { clock, looked_at: AtomicU64::new(0), waiting_since: AtomicI64::new(NONE), bell };
        pulse.beat();
        pulse
    }

    /// The courier has looked for work, and kept what came of the last.
    pub(super) fn beat(&self) {
        self.looked_at.store(self.millis(), Ordering::Relaxed);
    }

    /// There is something to deliver.
    pub fn ring(&self) {
        self.bell.notify_one();
    }

    /// Waits until there is.
    pub(super) async fn rung(&self) {
        self.bell.notified().await;
    }

    /// How the queue is.
    pub fn health(&self) -> QueueHealth {
        let silent = Duration::from_millis(self.millis().saturating_sub(self.looked_at.load(Ordering::Relaxed)));
        let waiting = self.waiting_since.load(Ordering::Relaxed);
        if silent > SILENCE {
            QueueHealth::Down
        } else if waiting != NONE && self.clock.now().since(Timestamp::from_micros(waiting)) > BACKLOG {
            QueueHealth::Behind
        } else {
            QueueHealth::Up
        }
    }

    /// Counts what waits.
    pub async fn look(&self, store: &Store, metrics: &WebhookMetrics) -> Result<(), StoreError> {
        let now = self.clock.now();
        let mut read = store.read().await?;
        let waiting = webhook_targets::waiting_since(read.conn(), now).await?;
        self.waiting_since.store(waiting.map_or(NONE, Timestamp::micros), Ordering::Relaxed);
        metrics.pending.set(deliveries::count_pending(read.conn()).await?);
        let since_epoch = |at: Timestamp| at.since(Timestamp::from_micros(0)).as_secs_f64();
        metrics.oldest_due.set(waiting.map_or(0.0, since_epoch));
        Ok(())
    }

    fn millis(&self) -> u64 {
        u64::try_from(self.clock.since_boot().as_millis()).unwrap_or(u64::MAX)
    }
}
