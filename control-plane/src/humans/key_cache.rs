//! The keys of an issuer as they were fetched last, and when they are fetched again.
//!
//! Everybody who needs keys that are not there waits for one and the same fetch. A key that is not in the set is
//! reason to fetch again, once a minute at most: whoever invents names of keys reaches the issuer no more often
//! than that.

use super::key_set::{Algorithm, KeySet, Pick};
use countersign_identity::{Reason, Refusal};
use countersign_process::Clock;
use jsonwebtoken::DecodingKey;
use std::{
    fmt::Display,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{sync::OwnedMutexGuard, task::JoinHandle};

/// Between two fetches for the sake of a key that is not in the set.
const FOR_AN_UNKNOWN_KEY: Duration = Duration::from_mins(1);

/// After a fetch that failed, while nobody can be served.
const BEFORE_ANOTHER_TRY: Duration = Duration::from_secs(1);

/// After a fetch that failed, while the keys that are known serve.
const BEFORE_ANOTHER_REFRESH: Duration = Duration::from_secs(15);

/// After a fetch that failed, nobody whose key is known waits for the next one: an issuer that does not answer would hold
/// up everybody again and again.
const SEEN_AWAY: Duration = Duration::from_mins(1);

/// Where keys come from.
pub trait Source: Send + Sync + 'static {
    /// Fetches all keys; ends in bounded time.
    fn fetch(&self) -> impl Future<Output = Result<KeySet, impl Display + Send>> + Send;
}

/// How old keys may get.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// Then they are fetched again.
    pub refresh: Duration,
    /// Then they are not believed any more.
    pub max_age: Duration,
}

/// The keys of one issuer. The clock is the one since boot: nobody can set it back.
pub struct Keys<S> {
    shared: Arc<Shared<S>>,
    clock: Arc<dyn Clock>,
    patience: Patience,
}

struct Shared<S> {
    issuer: String,
    source: S,
    known: Mutex<Known>,
    /// Held by the one fetch that is under way.
    flight: Arc<tokio::sync::Mutex<()>>,
}

/// Instants since boot.
#[derive(Default)]
struct Known {
    /// With the beginning of the fetch that brought them.
    keys: Option<(KeySet, Duration)>,
    failed_at: Option<Duration>,
    fetched_for_unknown_at: Option<Duration>,
}

/// What to do about a token.
enum Next {
    Use(Arc<DecodingKey>),
    /// With a fetch beside it that nobody waits for.
    UseAndFetch(Arc<DecodingKey>),
    Refuse(Reason),
    Fetch {
        for_unknown: bool,
    },
}

impl<S: Source> Keys<S> {
    /// Nothing is fetched before somebody asks.
    pub fn new(issuer: String, source: S, patience: Patience, clock: Arc<dyn Clock>) -> Self {
        let shared = Shared { issuer, source, known: Mutex::default(), flight: Arc::default() };
        Self { shared: Arc::new(shared), clock, patience }
    }

    /// The key that a token with this `kid` and algorithm means.
    pub async fn find(&self, kid: Option<&str>, algorithm: Algorithm) -> Result<Arc<DecodingKey>, Refusal> {
        let came_at = self.clock.since_boot();
        loop {
            if let Some(found) = self.settled(came_at, kid, algorithm) {
                return found;
            }
            let flight = self.shared.flight.clone().lock_owned().await;
            // Whoever held it before may have brought what is wanted.
            let now = self.clock.since_boot();
            let Next::Fetch { for_unknown } = self.shared.known().next(self.patience, now, came_at, kid, algorithm)
            else {
                continue;
            };
            if for_unknown {
                self.shared.known().fetched_for_unknown_at = Some(now);
            }
            if self.begin_fetch(now, flight).await.is_err() {
                return Err(Reason::HumanIssuerUnavailable.into());
            }
        }
    }

    /// A task of its own: it goes on if the one who asked goes away.
    fn begin_fetch(&self, now: Duration, flight: OwnedMutexGuard<()>) -> JoinHandle<()> {
        let (shared, clock) = (self.shared.clone(), self.clock.clone());
        tokio::spawn(async move {
            shared.fetch(now, clock.as_ref()).await;
            drop(flight);
        })
    }

    /// Nobody waits for this fetch. If another is under way, or just brought keys, there is none.
    fn fetch_beside(&self, came_at: Duration, kid: Option<&str>, algorithm: Algorithm) {
        let Ok(flight) = self.shared.flight.clone().try_lock_owned() else { return };
        let now = self.clock.since_boot();
        let next = self.shared.known().next(self.patience, now, came_at, kid, algorithm);
        if matches!(next, Next::UseAndFetch(_)) {
            drop(self.begin_fetch(now, flight));
        }
    }

    fn settled(
        &self,
        came_at: Duration,
        kid: Option<&str>,
        algorithm: Algorithm,
    ) -> Option<Result<Arc<DecodingKey>, Refusal>> {
        let now = self.clock.since_boot();
        let next = self.shared.known().next(self.patience, now, came_at, kid, algorithm);
        match next {
            Next::Use(key) => Some(Ok(key)),
            Next::UseAndFetch(key) => {
                self.fetch_beside(came_at, kid, algorithm);
                Some(Ok(key))
            }
            Next::Refuse(reason) => Some(Err(reason.into())),
            Next::Fetch { .. } => None,
        }
    }
}

impl<S: Source> Shared<S> {
    async fn fetch(&self, began: Duration, clock: &dyn Clock) {
        let fetched = self.source.fetch().await;
        let mut known = self.known();
        match fetched {
            Ok(keys) => {
                tracing::debug!(issuer = self.issuer, keys = keys.len(), "the keys of an issuer of people");
                if keys.len() == 0 {
                    tracing::warn!(
                        issuer = self.issuer,
                        "the issuer has no key that can be used: nobody of it gets in"
                    );
                }
                known.keys = Some((keys, began));
                known.failed_at = None;
            }
            Err(error) => {
                tracing::warn!(issuer = self.issuer, %error, "the keys of an issuer of people cannot be fetched");
                known.failed_at = Some(clock.since_boot());
            }
        }
    }
}

impl<S> Shared<S> {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn next(&self, patience: Patience, now: Duration, came_at: Duration, kid: Option<&str>, of: Algorithm) -> Next {
        let Patience { refresh, max_age } = patience;
        let within = |span: Duration, at: Option<Duration>| at.is_some_and(|at| now.saturating_sub(at) < span);
        // What was fetched after this request came is young enough for it, however long that took.
        let younger = |than: Duration, began: Duration| began >= came_at || now.saturating_sub(began) < than;
        let believed = self.keys.as_ref().filter(|(_, began)| younger(max_age, *began));
        let Some((keys, began)) = believed else {
            // What failed after this request came is an answer to it.
            let tried = self.failed_at.is_some_and(|at| at >= came_at) || within(BEFORE_ANOTHER_TRY, self.failed_at);
            return if tried {
                Next::Refuse(Reason::HumanIssuerUnavailable)
            } else {
                Next::Fetch { for_unknown: false }
            };
        };
        let due = !younger(refresh, *began) && !within(BEFORE_ANOTHER_REFRESH, self.failed_at);
        let seen_away = within(SEEN_AWAY, self.failed_at);
        if due && !seen_away {
            return Next::Fetch { for_unknown: false };
        }
        match keys.pick(kid, of) {
            Pick::Found(key) if due => Next::UseAndFetch(key),
            Pick::Found(key) => Next::Use(key),
            Pick::Unfit => Next::Refuse(Reason::HumanTokenInvalid),
            Pick::Unknown if *began >= came_at => Next::Refuse(Reason::HumanTokenInvalid),
            Pick::Unknown if within(FOR_AN_UNKNOWN_KEY, self.fetched_for_unknown_at) => {
                // If the issuer could not be asked about this key, we do not know, and say so.
                let unanswered = self.failed_at >= self.fetched_for_unknown_at;
                Next::Refuse(if unanswered { Reason::HumanIssuerUnavailable } else { Reason::HumanTokenInvalid })
            }
            Pick::Unknown => Next::Fetch { for_unknown: true },
        }
    }
}

#[cfg(test)]
mod tests;
