//! The fan-out of events to webhook targets: creates one delivery per subscribed target from each event of the outbox.
//!
//! It runs after the transaction that emitted the event, so that a login, for example, does not wait until the deliveries to all
//! targets are stored.

use crate::store::{Store, StoreError, WriteTransaction, outbox};
use countersign_process::Shutdown;
use std::{sync::Arc, time::Duration};
use tokio::sync::Notify;

/// Maximum number of events in one transaction.
const BATCH_SIZE: i64 = 200;

/// Interval at which the outbox is polled for events that other processes stored.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Minimum time between two polls, so that events which arrive together share a transaction.
const MIN_PAUSE: Duration = Duration::from_millis(50);

/// Fans out events until shutdown is requested, and wakes the dispatcher.
pub async fn fan_out_events(store: Store, dispatcher_wakeup: Arc<Notify>, shutdown: Shutdown) {
    let events_committed = store.events_committed();
    loop {
        if let Err(error) = drain_outbox(&store, &dispatcher_wakeup, &shutdown).await {
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

/// Fans out events until none waits. A shutdown ends this early, and the next start continues.
async fn drain_outbox(store: &Store, dispatcher_wakeup: &Notify, shutdown: &Shutdown) -> Result<(), StoreError> {
    while !shutdown.is_requested() && outbox::has_events(store.read().await?.conn()).await? {
        let work = async |mut tx: WriteTransaction| {
            let now = tx.now();
            outbox::fan_out(tx.conn(), now, BATCH_SIZE).await?;
            tx.commit(()).await
        };
        store.write_alone("fan_out_events", work).await?;
        dispatcher_wakeup.notify_one();
    }
    Ok(())
}
