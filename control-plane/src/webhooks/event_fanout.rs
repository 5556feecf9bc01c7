//! Puts what happened on its way to each target that gets it: moments after the transaction that said so, so that nobody
//! who logs in waits until ten targets are written down.

use super::Pulse;
use crate::store::{Store, StoreError, Write, outbox};
use countersign_process::Shutdown;
use std::{sync::Arc, time::Duration};

/// Events that one transaction sorts.
const AT_ONCE: i64 = 200;

/// How often it is looked although nobody in this process put anything down.
const POLL: Duration = Duration::from_secs(1);

/// Between two looks at the least, so that what comes fast is sorted together.
const PAUSE: Duration = Duration::from_millis(50);

/// Sorts until the process is asked to stop.
pub struct Sorter {
    /// Where events are.
    pub store: Store,
    /// Rung when there is something to deliver.
    pub pulse: Arc<Pulse>,
}

impl Sorter {
    /// Sorts until the process is asked to stop.
    pub async fn run(self, shutdown: Shutdown) {
        let told = self.store.told();
        loop {
            match self.sort_all().await {
                Ok(()) => {}
                Err(error) => tracing::warn!(%error, "events could not be sorted; trying again in a second"),
            }
            tokio::time::sleep(PAUSE).await;
            tokio::select! {
                () = shutdown.requested() => return,
                () = told.notified() => {}
                () = tokio::time::sleep(POLL) => {}
            }
        }
    }

    async fn sort_all(&self) -> Result<(), StoreError> {
        while outbox::any(self.store.read().await?.conn()).await? {
            let work = async |mut tx: Write| {
                let now = tx.now();
                outbox::sort(tx.conn(), now, AT_ONCE).await?;
                tx.commit(()).await
            };
            self.store.write("sort_events", work).await?;
            self.pulse.ring();
        }
        Ok(())
    }
}
