//! Windows that all replicas share, in a Redis; and the word among them that something has changed.
//!
//! Redis is asked for a moment, never waited for. While it does not answer, or says no, calls are counted in the
//! memory of this replica, and one task tries to have it back ([`Redis::keep`]): no call does. So whoever is counted
//! waits at most for [`PATIENCE`], and is never let pass uncounted.

mod cluster;
mod keeper;
mod place;
mod script;
#[cfg(test)]
mod tests;
mod wakes;
mod words;

pub use place::{Place, Servers, Watched};

use super::{Answer, Count, Memory, Presence, Verdict, Windows};
use crate::metrics::{RedisMetrics, RedisResult as Outcome};
use countersign_process::Clock;
use place::Link;
use redis::RedisResult;
use script::Counting;
use std::{sync::Arc, time::Duration};
use tokio::sync::watch;

/// How long Redis may take to answer.
const PATIENCE: Duration = Duration::from_millis(250);

/// Windows in a Redis, or in memory while that is lost.
pub struct Redis {
    place: Place,
    counting: Counting,
    channel: String,
    own: Memory,
    hold: watch::Sender<Hold>,
    metrics: RedisMetrics,
}

/// What there is of Redis now.
#[derive(Default)]
struct Hold {
    link: Option<Link>,
    /// Counts the links there have been: who found one broken does not take away the next one.
    number: u64,
}

impl Redis {
    /// Windows in the Redis at this place, of a deployment with this name. It is not asked for yet: see [`Self::keep`].
    pub fn new(place: Place, deployment: &str, clock: Arc<dyn Clock>, metrics: RedisMetrics) -> Self {
        // What is in braces decides on the node of a cluster: a script may only touch keys of one.
        let tag = format!("{{countersign:{deployment}}}");
        metrics.begin(place.kind());
        Self {
            counting: Counting::new(&tag),
            channel: format!("{tag}:changed"),
            place,
            own: Memory::new(clock),
            hold: watch::Sender::default(),
            metrics,
        }
    }

    async fn judge(&self, counts: &[Count], take: bool) -> Verdict {
        match self.ask(async |link| self.counting.judge(link, counts, take).await).await {
            Some(verdict) => verdict,
            None if take => self.own.take(counts).await,
            None => self.own.look(counts).await,
        }
    }

    /// Asks Redis for something, if it is there and answers soon.
    async fn ask<T>(&self, question: impl AsyncFnOnce(&mut Link) -> RedisResult<T>) -> Option<T> {
        let (link, number) = {
            let hold = self.hold.borrow();
            (hold.link.clone(), hold.number)
        };
        let Some(mut link) = link else {
            self.metrics.note(Outcome::Alone);
            return None;
        };
        match tokio::time::timeout(PATIENCE, question(&mut link)).await {
            Ok(Ok(answer)) => {
                self.metrics.note(Outcome::Answered);
                Some(answer)
            }
            Ok(Err(error)) => {
                self.metrics.note(Outcome::Failed);
                self.lose(number, &error);
                None
            }
            Err(_) => {
                self.metrics.note(Outcome::Late);
                self.lose(number, &"no answer in time");
                None
            }
        }
    }

    /// Whoever finds out first says so; the rest is the keeper's.
    fn lose(&self, number: u64, reason: &dyn std::fmt::Display) {
        let was_there = self.hold.send_if_modified(|hold| hold.number == number && hold.link.take().is_some());
        if was_there {
            self.metrics.show(self.place.kind(), false);
            tracing::warn!(%reason, "redis is lost: this replica counts calls alone, until it is back");
        }
    }
}

impl Windows for Redis {
    fn take<'a>(&'a self, counts: &'a [Count]) -> Answer<'a> {
        Box::pin(self.judge(counts, true))
    }

    fn look<'a>(&'a self, counts: &'a [Count]) -> Answer<'a> {
        Box::pin(self.judge(counts, false))
    }

    fn presence(&self) -> Presence {
        if self.hold.borrow().link.is_some() { Presence::Shared } else { Presence::Lost }
    }
}
