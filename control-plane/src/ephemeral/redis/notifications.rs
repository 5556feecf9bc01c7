//! Notifications between replicas that the database has changed.
//!
//! A notification has no content: the change itself is in the database, which every replica also polls. A lost notification
//! therefore delays a change by one poll interval.

use super::client::RedisClient;
use std::convert::Infallible;
use tokio::sync::watch;

impl RedisClient {
    /// Notifies the other replicas whenever the value of `newest` increases; never returns. Several increases while a
    /// notification is being sent cause one further notification.
    pub async fn publish_changes<T: Copy + PartialOrd>(&self, mut newest: watch::Receiver<T>) -> Infallible {
        let mut published = *newest.borrow_and_update();
        while newest.changed().await.is_ok() {
            let current = *newest.borrow_and_update();
            // A notification from another replica also wakes this task, but does not increase `newest`. If we published it again,
            // two replicas would wake each other forever.
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

    /// Calls `wake` after notifications from any replica, including this one; never returns.
    pub async fn receive_changes(&self, wake: impl Fn()) -> Infallible {
        loop {
            self.messages.notified().await;
            wake();
        }
    }
}
