//! One reader of the feed for all followers of this process.

use super::content::{self, Content, Since};
use crate::{metrics::Metrics, store::Store};
use countersign_identity::{Revision, Timestamp};
use countersign_process::Shutdown;
use std::{sync::Arc, time::Duration};
use tokio::sync::{broadcast, watch};

/// Batches that a follower may be behind before it is cut and must resume.
const BACKLOG: usize = 1024;

/// How often the feed is read although nobody in this process wrote.
const POLL: Duration = Duration::from_millis(250);

/// Where followers hear of changes.
#[derive(Clone)]
pub struct Feed(broadcast::Sender<Arc<Content>>);

/// The one reader.
pub struct Reader {
    feed: Feed,
    store: Store,
    committed: watch::Receiver<Revision>,
    sent: Revision,
}

impl Reader {
    /// Begins where the feed stands now: whoever subscribes from here on misses nothing.
    pub fn new(store: Store) -> Self {
        let mut committed = store.committed_revision();
        let sent = *committed.borrow_and_update();
        Self { feed: Feed(broadcast::Sender::new(BACKLOG)), store, committed, sent }
    }

    /// Where to hear of what is read.
    pub fn feed(&self) -> Feed {
        self.feed.clone()
    }

    /// Reads the feed and tells all followers, until the process is asked to stop.
    pub async fn run(mut self, metrics: Metrics, shutdown: Shutdown) {
        loop {
            tokio::select! {
                () = shutdown.requested() => return,
                _ = self.committed.changed() => {}
                () = tokio::time::sleep(POLL) => {}
            }
            self.committed.borrow_and_update();
            self.sent = advance(&self.store, &self.feed.0, &metrics, self.sent).await;
        }
    }
}

impl Feed {
    /// Everything that is read from now on.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<Content>> {
        self.0.subscribe()
    }
}

async fn advance(
    store: &Store,
    sender: &broadcast::Sender<Arc<Content>>,
    metrics: &Metrics,
    sent: Revision,
) -> Revision {
    let read = content::read(store, Since::Everyone(sent)).await;
    if read.is_ok() {
        metrics.feed_last_read.set(store.now().duration_since(Timestamp::from_micros(0)).as_secs_f64());
    }
    match read {
        Ok(Some(content)) if content.revision > sent => {
            let revision = content.revision;
            metrics.feed_revision.set(revision.number());
            // Nobody may be listening: then there is nobody to tell.
            let _listeners = sender.send(Arc::new(content));
            revision
        }
        Ok(_) => sent,
        Err(error) => {
            tracing::warn!(%error, "the feed could not be read; trying again");
            sent
        }
    }
}
