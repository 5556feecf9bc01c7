//! Reads each new change once, and broadcasts it to all sync streams of this process.

use super::change_batch::{self, ChangeBatch, ReadScope};
use crate::{metrics::Metrics, store::Store};
use countersign_identity::{Revision, Timestamp};
use countersign_process::Shutdown;
use std::{sync::Arc, time::Duration};
use tokio::sync::{broadcast, watch};

/// Maximum number of batches by which a follower (the stream to one sidecar) may lag. A slower stream is closed, and the
/// sidecar resumes with a new stream.
const MAX_LAG: usize = 1024;

/// Default interval at which the change feed is polled for changes that other processes committed.
pub const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// A revocation must take effect within a second, as README promises, also at replicas without Redis, which only poll.
const _: () = assert!(POLL_INTERVAL.as_millis() <= 500);

/// Broadcasts batches of changes.
#[derive(Clone)]
pub struct ChangeFeed(broadcast::Sender<Arc<ChangeBatch>>);

/// Reads the change feed for all followers (streams to sidecars) of the process.
pub struct FeedReader {
    feed: ChangeFeed,
    store: Store,
    committed: watch::Receiver<Revision>,
    poll_interval: Duration,
    /// Changes up to this revision have been broadcast.
    sent_revision: Revision,
}

impl FeedReader {
    /// A reader that starts at the current revision. Subscribers receive all later changes.
    pub fn new(store: Store, poll_interval: Duration) -> Self {
        let mut committed = store.committed_revision();
        let sent_revision = *committed.borrow_and_update();
        Self { feed: ChangeFeed(broadcast::Sender::new(MAX_LAG)), store, committed, poll_interval, sent_revision }
    }

    /// The change feed that this reader broadcasts to.
    pub fn feed(&self) -> ChangeFeed {
        self.feed.clone()
    }

    /// Reads and broadcasts changes until shutdown is requested.
    pub async fn run(mut self, metrics: Metrics, shutdown: Shutdown) {
        loop {
            tokio::select! {
                () = shutdown.requested() => return,
                _ = self.committed.changed() => {}
                () = tokio::time::sleep(self.poll_interval) => {}
            }
            self.committed.borrow_and_update();
            self.broadcast_changes(&metrics).await;
        }
    }

    async fn broadcast_changes(&mut self, metrics: &Metrics) {
        let result = change_batch::read_batch(&self.store, ReadScope::AllServices(self.sent_revision)).await;
        if result.is_ok() {
            let since_epoch = self.store.now().duration_since(Timestamp::from_micros(0));
            metrics.feed_last_read.set(since_epoch.as_secs_f64());
        }
        match result {
            Ok(Some(batch)) if batch.revision > self.sent_revision => {
                self.sent_revision = batch.revision;
                metrics.feed_revision.set(batch.revision.number());
                // Sending fails if there is no subscriber, which is no problem.
                let _ignored = self.feed.0.send(Arc::new(batch));
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "cannot read the change feed; retrying"),
        }
    }
}

impl ChangeFeed {
    /// Receives all batches that are read after the subscription.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<ChangeBatch>> {
        self.0.subscribe()
    }
}
