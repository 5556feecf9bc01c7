//! Notifications between replicas that the database has changed.
//!
//! A notification has no content: the change itself is in the database, which every replica also polls. A lost notification
//! therefore delays a change by one poll interval.

use super::client::RedisClient;
use std::{convert::Infallible, time::Duration};
use tokio::sync::watch;

/// Pause after a subscription has ended or failed.
const RESUBSCRIBE_PAUSE: Duration = Duration::from_secs(1);

impl RedisClient {
    /// Notifies the other replicas whenever this value grows; never returns. Changes that arrive while a notification is
    /// being sent are combined into one.
    pub async fn publish_changes<T: Copy + PartialOrd>(&self, mut newest: watch::Receiver<T>) -> Infallible {
        let mut published = *newest.borrow_and_update();
        while newest.changed().await.is_ok() {
            let current = *newest.borrow_and_update();
            // A replica that was only woken has nothing to publish. Otherwise two replicas would wake each other forever.
            if current > published {
                published = current;
                let mut command = redis::cmd("PUBLISH");
                command.arg(&self.channel).arg("");
                let _replicas_poll_if_this_fails =
                    self.request(async |connection| connection.send::<i64>(&command).await).await;
            }
        }
        // The sender is gone: nothing changes any more.
        std::future::pending().await
    }

    /// Calls `wake` for each notification of any replica, this one included; never returns.
    pub async fn receive_changes(&self, wake: impl Fn()) -> Infallible {
        let mut changes = self.connection_changes();
        loop {
            changes.mark_unchanged();
            let is_connected = self.is_connected();
            // A new connection means a new subscription: the old one may lead to a server that is no longer the master.
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
        // Notifications sent before this subscription are lost.
        wake();
        while subscription.next().await.is_some() {
            wake();
        }
    }
}
