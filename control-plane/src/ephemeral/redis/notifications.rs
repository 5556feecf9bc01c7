//! The word among replicas that something has changed. It says no more than that: what changed is in the database,
//! which is also looked at now and then, so a word that is lost is lost for a moment.

use super::Redis;
use std::{convert::Infallible, time::Duration};
use tokio::sync::watch;

/// After listening has ended, or was in vain.
const PAUSE: Duration = Duration::from_secs(1);

impl Redis {
    /// Tells the others whenever this grows, for ever. However often it grew while they were told, they are told once.
    pub async fn tell<T: Copy + PartialOrd>(&self, mut newest: watch::Receiver<T>) -> Infallible {
        let mut told = *newest.borrow_and_update();
        while newest.changed().await.is_ok() {
            let now = *newest.borrow_and_update();
            // Who was only woken has nothing to tell: else two would wake each other for ever.
            if now > told {
                told = now;
                let mut command = redis::cmd("PUBLISH");
                command.arg(&self.channel).arg("");
                let _heard_by_looking_otherwise = self.ask(async |link| link.send::<i64>(&command).await).await;
            }
        }
        // Nothing changes any more.
        std::future::pending().await
    }

    /// Wakes whenever another, or this replica itself, has told; for ever.
    pub async fn hear(&self, wake: impl Fn()) -> Infallible {
        let mut changes = self.hold.subscribe();
        loop {
            let is_there = changes.borrow_and_update().link.is_some();
            // With a new connection one listens anew: the old one may lead to who is nobody's master any more.
            tokio::select! {
                () = self.listen(&wake), if is_there => tokio::time::sleep(PAUSE).await,
                _ = changes.changed() => {}
            }
        }
    }

    /// As long as the connection lasts, if there comes one about.
    async fn listen(&self, wake: impl Fn()) {
        let Ok(mut words) = self.place.listen(&self.channel).await else { return };
        // What was told in between was not heard.
        wake();
        while words.next().await.is_some() {
            wake();
        }
    }
}
