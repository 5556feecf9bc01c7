//! Notifications between replicas that the database has changed.
//!
//! A notification has no content: the change itself is in the database, which every replica also polls. A lost notification
//! therefore delays a change by one poll interval.

use super::client::RedisClient;
use std::{convert::Infallible, time::Duration};
use tokio::sync::watch;

/// Pause before a subscription that ended or failed is renewed.
const RESUBSCRIBE_PAUSE: Duration = Duration::from_secs(1);

impl RedisClient {
    /// Notifies the other replicas whenever the value of `newest` increases; never returns. Several increases while a
    /// notification is being sent cause one further notification.
    pub async fn publish_changes<T: Copy + PartialOrd>(&self, mut newest: watch::Receiver<T>) -> Infallible {
        let mut published = *newest.borrow_and_update();
        while newest.changed().await.is_ok() {
            let current = *newest.borrow_and_update();
            // A notification from another replica also wakes this task, but does not increase the value of `newest`. Publishing
            // a notification that came from another replica would make two replicas wake each other forever.
            if current > published {
                published = current;
                let mut command = redis::cmd("PUBLISH");
                command.arg(&self.channel).arg("");
                // If publishing fails, the other replicas detect the change by polling.
                let _ignored = self.request(async |connection| connection.send::<i64>(&command).await).await;
            }
        }
        // The sender of `newest` was dropped, so the value of `newest` no longer changes.
        std::future::pending().await
    }

    /// Calls `wake` for each notification of any replica, including this replica; never returns.
    pub async fn receive_changes(&self, wake: impl Fn()) -> Infallible {
        let mut changes = self.connection_changes();
        loop {
            changes.mark_unchanged();
            let is_connected = self.is_connected();
            // Subscribe again after each reconnection: the old subscription may be at a server that is no longer the master.
            tokio::select! {
                () = self.forward_notifications(&wake), if is_connected => {
                    tokio::time::sleep(RESUBSCRIBE_PAUSE).await;
                }
                _ = changes.changed() => {}
            }
        }
    }

    /// Subscribes, and forwards notifications until the subscription ends.
    async fn forward_notifications(&self, wake: impl Fn()) {
        let Ok(mut subscription) = self.endpoint.subscribe(&self.channel).await else { return };
        // Notifications sent before the subscription are lost, so the database may contain a change that this replica has not
        // read.
        wake();
        while subscription.next().await.is_some() {
            wake();
        }
    }
}
