//! A cache of an issuer's keys, which decides when to fetch the keys again.
//!
//! Concurrent requests that need keys wait for the same fetch. A `kid` that is not in the set triggers at most one fetch a
//! minute, so a client that invents key IDs cannot make this server flood the issuer.

use super::jwk_set::{JwkSet, KeyMatch};
use crate::metrics::JwksFetchMetrics;
use countersign_identity::{Reason, Refusal};
use countersign_process::Clock;
use jsonwebtoken::{Algorithm, DecodingKey};
use std::{
    fmt::Display,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{sync::OwnedMutexGuard, task::JoinHandle};

/// Minimum time between two fetches caused by an unknown `kid`.
const UNKNOWN_KID_INTERVAL: Duration = Duration::from_mins(1);

/// Minimum time between a failed fetch and the next one while no cached keys can be used.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Minimum time between a failed fetch and the next one while cached keys can be used.
const REFRESH_RETRY_INTERVAL: Duration = Duration::from_secs(15);

/// For this time after a failed fetch, a request whose key is cached does not wait for the next fetch. Otherwise an issuer that
/// does not respond would delay request after request.
const BACKGROUND_REFRESH_PERIOD: Duration = Duration::from_mins(1);

/// The age at which cached keys are fetched again. While fetches succeed, a withdrawn key is accepted for at most this time.
const REFRESH_AFTER: Duration = Duration::from_mins(15);

/// The age at which keys are no longer used. An issuer that cannot be reached for this long has no keys any more: requests with its
/// tokens get 503.
const MAX_AGE: Duration = Duration::from_hours(1);

pub trait KeySource: Send + Sync + 'static {
    /// Fetches all keys of the issuer. Must end in bounded time, because requests wait for it.
    fn fetch(&self) -> impl Future<Output = Result<JwkSet, impl Display + Send>> + Send;
}

/// The cached keys of one issuer. All times are measured since boot, with a clock that cannot be set back.
pub struct KeyCache<S>(Arc<Inner<S>>);

struct Inner<S> {
    issuer: String,
    source: S,
    clock: Arc<dyn Clock>,
    metrics: JwksFetchMetrics,
    state: Mutex<CacheState>,
    /// Held during a fetch, so that other requests wait for it instead of fetching too.
    fetch_lock: Arc<tokio::sync::Mutex<()>>,
}

/// The keys and the times of fetches, measured since boot.
#[derive(Default)]
struct CacheState {
    /// The keys, and the time at which their fetch began.
    keys: Option<(JwkSet, Duration)>,
    failed_at: Option<Duration>,
    fetched_for_unknown_kid_at: Option<Duration>,
}

/// A request for a key. It arrived at `arrived_at`, measured since boot.
#[derive(Clone, Copy)]
struct KeyRequest<'a> {
    kid: Option<&'a str>,
    algorithm: Algorithm,
    arrived_at: Duration,
}

enum Lookup {
    Hit(Arc<DecodingKey>),
    /// The key can be used, but the keys must be fetched again in the background.
    StaleHit(Arc<DecodingKey>),
    Rejected(Reason),
    Miss {
        unknown_kid: bool,
    },
}

impl<S: KeySource> KeyCache<S> {
    /// Creates an empty cache. The first request fetches the keys.
    pub fn new(issuer: String, source: S, clock: Arc<dyn Clock>, metrics: JwksFetchMetrics) -> Self {
        let (state, fetch_lock) = (Mutex::default(), Arc::default());
        Self(Arc::new(Inner { issuer, source, clock, metrics, state, fetch_lock }))
    }

    /// Where the keys come from.
    pub fn source(&self) -> &S {
        &self.0.source
    }

    /// Finds the key for a token with the given `kid` and algorithm. Fetches the keys if necessary.
    pub async fn find(&self, kid: Option<&str>, algorithm: Algorithm) -> Result<Arc<DecodingKey>, Refusal> {
        let request = KeyRequest { kid, algorithm, arrived_at: self.0.clock.since_boot() };
        loop {
            match self.0.look_up(request) {
                Lookup::Hit(key) => return Ok(key),
                Lookup::StaleHit(key) => {
                    self.refresh_in_background(request);
                    return Ok(key);
                }
                Lookup::Rejected(reason) => return Err(reason.into()),
                Lookup::Miss { .. } => {}
            }
            let fetch_lock = self.0.fetch_lock.clone().lock_owned().await;
            // While this request waited for the lock, another one may have fetched the key, so look it up again.
            let now = self.0.clock.since_boot();
            let Lookup::Miss { unknown_kid } = self.0.look_up(request) else { continue };
            if unknown_kid {
                self.0.state().fetched_for_unknown_kid_at = Some(now);
            }
            // The task puts the result of the fetch into the cache, and fails only if it panics.
            if self.spawn_fetch(now, fetch_lock).await.is_err() {
                return Err(Reason::HumanIssuerUnavailable.into());
            }
        }
    }

    /// Fetches the keys in a task, so that the fetch continues if the request is cancelled.
    fn spawn_fetch(&self, now: Duration, fetch_lock: OwnedMutexGuard<()>) -> JoinHandle<()> {
        let inner = self.0.clone();
        tokio::spawn(async move {
            inner.fetch(now).await;
            drop(fetch_lock);
        })
    }

    /// Starts a fetch without waiting for it, unless one is running or has just succeeded.
    fn refresh_in_background(&self, request: KeyRequest) {
        let Ok(fetch_lock) = self.0.fetch_lock.clone().try_lock_owned() else { return };
        let now = self.0.clock.since_boot();
        if matches!(self.0.look_up(request), Lookup::StaleHit(_)) {
            drop(self.spawn_fetch(now, fetch_lock));
        }
    }
}

impl<S: KeySource> Inner<S> {
    fn look_up(&self, request: KeyRequest) -> Lookup {
        self.state().look_up(self.clock.since_boot(), request)
    }

    async fn fetch(&self, began_at: Duration) {
        match self.source.fetch().await {
            Ok(keys) => {
                self.metrics.succeeded.inc();
                tracing::debug!(issuer = self.issuer, keys = keys.len(), "fetched the issuer's keys");
                keys.warn_if_empty(&self.issuer);
                let mut state = self.state();
                state.keys = Some((keys, began_at));
                state.failed_at = None;
            }
            Err(error) => {
                self.metrics.failed.inc();
                tracing::warn!(issuer = self.issuer, %error, "fetching the issuer's keys failed");
                self.state().failed_at = Some(self.clock.since_boot());
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, CacheState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CacheState {
    fn look_up(&self, now: Duration, request: KeyRequest) -> Lookup {
        let KeyRequest { kid, algorithm, arrived_at } = request;
        let is_within = |span: Duration, at: Option<Duration>| at.is_some_and(|at| now.saturating_sub(at) < span);
        // Keys are current enough for a request if their fetch began after the request arrived, however long the fetch took.
        let is_younger = |age: Duration, began: Duration| began >= arrived_at || now.saturating_sub(began) < age;
        let usable = self.keys.as_ref().filter(|(_, began)| is_younger(MAX_AGE, *began));
        let Some((keys, began)) = usable else {
            // A request that has seen a fetch fail does not start another one.
            let failed = self.failed_at.is_some_and(|at| at >= arrived_at) || is_within(RETRY_INTERVAL, self.failed_at);
            return if failed {
                Lookup::Rejected(Reason::HumanIssuerUnavailable)
            } else {
                Lookup::Miss { unknown_kid: false }
            };
        };
        let is_due = !is_younger(REFRESH_AFTER, *began) && !is_within(REFRESH_RETRY_INTERVAL, self.failed_at);
        let failed_recently = is_within(BACKGROUND_REFRESH_PERIOD, self.failed_at);
        if is_due && !failed_recently {
            return Lookup::Miss { unknown_kid: false };
        }
        match keys.find(kid, algorithm) {
            KeyMatch::Unique(key) if is_due => Lookup::StaleHit(key),
            KeyMatch::Unique(key) => Lookup::Hit(key),
            KeyMatch::Unusable => Lookup::Rejected(Reason::HumanTokenInvalid),
            // The keys were fetched after the request arrived, so another fetch would not help.
            KeyMatch::Unknown if *began >= arrived_at => Lookup::Rejected(Reason::HumanTokenInvalid),
            KeyMatch::Unknown if is_within(UNKNOWN_KID_INTERVAL, self.fetched_for_unknown_kid_at) => {
                // If the last fetch for an unknown `kid` failed, the issuer may have the key, so we do not call the token invalid.
                let fetch_failed = self.failed_at >= self.fetched_for_unknown_kid_at;
                Lookup::Rejected(if fetch_failed { Reason::HumanIssuerUnavailable } else { Reason::HumanTokenInvalid })
            }
            KeyMatch::Unknown => Lookup::Miss { unknown_kid: true },
        }
    }
}

#[cfg(test)]
mod tests;
