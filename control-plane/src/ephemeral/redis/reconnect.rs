//! One task that looks after the connection, so that no call has to.

use super::{Hold, PATIENCE, Redis, place::Link};
use crate::ephemeral::{Count, Kind, Quota, Subject};
use redis::RedisError;
use std::{convert::Infallible, time::Duration};

/// How long it may take to connect: to find out where, and to shake hands.
const CONNECTING: Duration = Duration::from_secs(3);

/// How long the first connection is waited for at a start.
const GREETING: Duration = Duration::from_secs(1);

/// How often it is looked whether Redis is still there, also when nobody calls.
const ROUND: Duration = Duration::from_secs(1);

/// In how many rounds it is looked once which nodes a cluster has.
const LOOKING: u32 = 10;

/// After a loss, Redis is left alone so long; and twice as long after each try in vain, up to the last.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
enum Absent {
    #[error(transparent)]
    Redis(#[from] RedisError),
    #[error("no answer in time")]
    Late,
}

impl Redis {
    /// Looks for it once, for a moment: whoever starts with a Redis that is there counts in it from the first call on.
    pub async fn greet(&self) {
        let found = tokio::time::timeout(GREETING, self.connect()).await.unwrap_or(Err(Absent::Late));
        match found {
            Ok(link) => self.have(link),
            Err(error) => {
                let known = tokio::time::timeout(GREETING, self.place.out_of_reach()).await.unwrap_or_default();
                let reason = known.map_or_else(|| error.to_string(), |known| format!("{error}; {known}"));
                tracing::warn!(reason, "redis is not there: this replica counts calls alone, until it is");
            }
        }
    }

    /// Keeps the connection, and gets it back when it is lost, for ever.
    pub async fn keep(&self) -> Infallible {
        let mut pause = PAUSES.0;
        loop {
            if self.watch().await {
                pause = PAUSES.0;
            }
            tokio::time::sleep(pause).await;
            pause = PAUSES.1.min(pause * 2);
            match self.connect().await {
                Ok(link) => self.have(link),
                Err(reason) => tracing::debug!(%reason, "redis is not back yet"),
            }
        }
    }

    /// Asks now and then, until it is lost; says whether it was there at all.
    async fn watch(&self) -> bool {
        let mut held = self.hold.subscribe();
        let mut rounds = 0_u32;
        while held.borrow_and_update().link.is_some() {
            rounds = rounds.wrapping_add(1);
            let _lost_meanwhile = tokio::time::timeout(ROUND, held.changed()).await;
            let probe = probe();
            let _lost_if_it_fails = self.ask(async |link| self.counting.judge(link, &probe, true).await).await;
            let link = self.hold.borrow().link.clone();
            if let (Some(mut link), 0) = (link, rounds % LOOKING) {
                self.look_around(&mut link).await;
            }
        }
        rounds > 0
    }

    /// A connection that was tried.
    async fn connect(&self) -> Result<Link, Absent> {
        let connecting = tokio::time::timeout(CONNECTING, self.place.connect());
        let mut link = connecting.await.map_err(|_| Absent::Late)??;
        let probe = probe();
        let tried = tokio::time::timeout(PATIENCE, self.counting.judge(&mut link, &probe, true));
        tried.await.map_err(|_| Absent::Late)??;
        self.look_around(&mut link).await;
        Ok(link)
    }

    async fn look_around(&self, link: &mut Link) {
        let _as_before_if_late = tokio::time::timeout(PATIENCE, self.place.look_around(link)).await;
    }

    fn have(&self, link: Link) {
        self.hold.send_modify(|hold| {
            let number = hold.number + 1;
            *hold = Hold { link: Some(link), number };
        });
        self.metrics.show(self.place.kind(), true);
        tracing::info!("redis is there: calls are counted together with all replicas");
    }
}

/// What calls need too: that the script runs, and that it can write. A copy that only reads would let nobody be counted.
fn probe() -> [Count; 1] {
    // So short that each probe makes a window anew: a Redis that is full may still let go of what is over, and then add.
    let quota = Quota { most: u32::MAX, window: Duration::from_millis(1) };
    [Count { subject: Subject::new(Kind::Proven, &[b"probe"]), quota }]
}
