//! The fan-out of events to webhook targets: creates one delivery per subscribed target from each event of the outbox.
//!
//! The fan-out of an event runs after the transaction that emitted the event, so that a login, for example, does not wait until
//! the deliveries to all targets are stored.

use crate::{
    metrics::WebhookMetrics,
    store::{
        Store, StoreError, WriteTransaction,
        outbox::{self, FanOut},
    },
};
use countersign_process::Shutdown;
use std::{collections::HashSet, sync::Arc, time::Duration};
use tokio::sync::Notify;

/// Maximum number of events in one transaction.
const BATCH_SIZE: i64 = 200;

/// Interval at which the outbox is polled for events that other processes stored.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Minimum time between two polls, so that events which arrive together share a transaction.
const MIN_PAUSE: Duration = Duration::from_millis(50);

/// The job that fans out events to webhook targets.
pub struct EventFanout {
    /// The database with the outbox and the deliveries.
    pub store: Store,
    /// Wakes the dispatcher after deliveries are stored.
    pub dispatcher_wakeup: Arc<Notify>,
    /// Counts the events that are set aside.
    pub metrics: WebhookMetrics,
}

impl EventFanout {
    /// Runs until shutdown is requested. First tries again the events that earlier processes have set aside: this version may
    /// know them.
    pub async fn run(self, shutdown: Shutdown) {
        let events_committed = self.store.events_committed();
        let (mut has_retried, mut logged) = (false, HashSet::new());
        loop {
            let result = async {
                if !has_retried {
                    self.retry_set_aside(&shutdown).await?;
                    has_retried = true;
                }
                self.drain_outbox(&shutdown, &mut logged).await
            };
            if let Err(error) = result.await {
                tracing::warn!(%error, "cannot create webhook deliveries from the outbox; retrying in one second");
            }
            tokio::time::sleep(MIN_PAUSE).await;
            tokio::select! {
                () = shutdown.requested() => return,
                () = events_committed.notified() => {}
                () = tokio::time::sleep(POLL_INTERVAL) => {}
            }
        }
    }

    /// Fans out events until none waits, or shutdown is requested: the next start continues.
    async fn drain_outbox(&self, shutdown: &Shutdown, logged: &mut HashSet<String>) -> Result<(), StoreError> {
        while !shutdown.is_requested() && outbox::has_events(self.store.read().await?.conn()).await? {
            let work = async |mut tx: WriteTransaction| {
                let now = tx.now();
                let result = outbox::fan_out(tx.conn(), now, BATCH_SIZE).await?;
                tx.commit(result).await
            };
            let FanOut { set_aside, .. } = self.store.write_alone("fan_out_events", work).await?;
            self.dispatcher_wakeup.notify_one();
            self.report_set_aside(set_aside, logged);
        }
        Ok(())
    }

    /// Counts the events that were set aside, and logs the first one of each kind.
    fn report_set_aside(&self, set_aside: Vec<(String, String)>, logged: &mut HashSet<String>) {
        self.metrics.set_aside.inc_by(set_aside.len() as u64);
        for (event, kind) in set_aside {
            if logged.insert(kind.clone()) {
                tracing::error!(
                    event,
                    kind,
                    "this version does not know webhook events of this kind, and sets them aside: a newer version emitted \
                     them, and delivers them when it starts"
                );
            }
        }
    }

    async fn retry_set_aside(&self, shutdown: &Shutdown) -> Result<(), StoreError> {
        // Other processes may set events aside at the same time, so only those of before count.
        let mut until = None;
        while !shutdown.is_requested() {
            let work = async |mut tx: WriteTransaction| {
                let until = until.unwrap_or(tx.now());
                let retried = outbox::retry_set_aside(tx.conn(), until, BATCH_SIZE).await?;
                tx.commit((until, retried)).await
            };
            let (first, retried) = self.store.write_alone("retry_events", work).await?;
            until = Some(first);
            if retried == 0 {
                break;
            }
        }
        Ok(())
    }
}
