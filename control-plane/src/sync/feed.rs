//! One reader of the feed for all followers of this process.

use super::content::{self, Content, Since};
use crate::{metrics::Metrics, store::Store};
use countersign_identity::Revision;
use countersign_process::Shutdown;
use std::{sync::Arc, time::Duration};
use tokio::sync::broadcast;

/// Batches that a follower may be behind before it is cut and must resume.
const BACKLOG: usize = 1024;

/// How often the feed is read although nobody in this process wrote.
const POLL: Duration = Duration::from_millis(250);

/// Where followers hear of changes.
#[derive(Clone)]
pub struct Feed(broadcast::Sender<Arc<Content>>);

impl Default for Feed {
    fn default() -> Self {
        Self(broadcast::Sender::new(BACKLOG))
    }
}

impl Feed {
    /// Reads the feed and tells all followers, until the process is asked to stop.
    pub async fn run(self, store: Store, metrics: Metrics, shutdown: Shutdown) {
        let mut committed = store.committed();
        let mut sent = *committed.borrow_and_update();
        loop {
            tokio::select! {
                () = shutdown.asked() => return,
                _ = committed.changed() => {}
                () = tokio::time::sleep(POLL) => {}
            }
            committed.borrow_and_update();
            sent = advance(&store, &self.0, &metrics, sent).await;
        }
    }

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
    match content::read(store, Since::Everyone(sent)).await {
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
