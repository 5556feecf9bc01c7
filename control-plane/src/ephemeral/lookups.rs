//! Limits the lookups of API keys from clients that have sent too many invalid ones.
//!
//! Whether an API key is valid is known only after it was read from the database, so a rate limit alone does not bound these
//! reads. Of a client over the limit of invalid credentials, only few API keys are looked up at a time, and only few wait. API keys
//! that were valid a short time ago pass at once, so a client that shares its address with others cannot delay them. If this
//! state is lost, a client is limited again after its next failures.

use super::rate_limit::{RateLimit, RateLimitDecision, RateLimiter};
use countersign_process::{Clock, server::Network};
use sha2::{Digest, Sha256};
use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    runtime::Handle,
    sync::{OwnedSemaphorePermit, Semaphore},
    time::sleep,
};

/// Number of API keys of a client over the limit that are looked up at a time.
const CONCURRENT_LOOKUPS: usize = 2;

/// Number of lookups of a client over the limit that are in progress or wait.
const MAX_LOOKUPS: usize = 64;

/// How long the lookups of a client are limited after its last failure over the limit.
const CLOSED_TIME: Duration = Duration::from_mins(1);

/// Maximum number of clients over the limit that are known. All further clients share one limit.
const MAX_CLIENTS: usize = 1 << 15;

/// A lookup that takes longer waits for the database. The server may then end the request itself.
const SLOW_LOOKUP: Duration = Duration::from_secs(1);

/// How long the lookup of a client that has left keeps its place: the time after which the database gives up its statement.
const ABANDONED_LOOKUP: Duration = Duration::from_secs(1);

/// How long an API key that was valid passes at once, at least. At most twice as long.
const VALID_TIME: Duration = Duration::from_mins(5);

/// Maximum number of valid API keys that are remembered in [`VALID_TIME`].
const MAX_VALID: usize = 1 << 15;

/// The limit of invalid credentials of a client address.
pub type FailureLimit = fn(IpAddr, u32) -> RateLimit;

/// Counts invalid credentials, and limits lookups.
pub struct KeyLookups {
    limiter: Arc<dyn RateLimiter>,
    limit: FailureLimit,
    per_minute: u32,
    clock: Arc<dyn Clock>,
    table: Mutex<LookupTable>,
}

#[derive(Default)]
struct LookupTable {
    clients: HashMap<Network, ClosedClient>,
    /// The limit of the clients that are not in `clients` because there is no room.
    others: Option<ClosedClient>,
    valid: ValidKeys,
}

/// A client over the limit.
#[derive(Clone)]
struct ClosedClient {
    /// In time since boot.
    until: Duration,
    lookups: Arc<Lookups>,
}

struct Lookups {
    /// Lookups in progress.
    turns: Arc<Semaphore>,
    /// Lookups in progress, and those that wait.
    places: Arc<Semaphore>,
}

/// Digests of API keys that were valid a short time ago, in two generations.
#[derive(Default)]
struct ValidKeys {
    newer: HashSet<KeyDigest>,
    older: HashSet<KeyDigest>,
    /// When `newer` becomes `older`, in time since boot.
    next_generation: Duration,
}

type KeyDigest = [u8; 16];

/// The lookup of one API key. If the client leaves before [`KeyLookup::end`], the lookup counts as one of an invalid key when this is
/// dropped: otherwise, a client could cause any number of lookups. Not counted are lookups of keys that were valid a short time ago,
/// and those that take longer than [`SLOW_LOOKUP`].
pub struct KeyLookup {
    lookups: Arc<KeyLookups>,
    client: IpAddr,
    digest: KeyDigest,
    /// In time since boot.
    began_at: Duration,
    has_ended: bool,
    permits: Option<[OwnedSemaphorePermit; 2]>,
}

/// Too many lookups of the client wait.
#[derive(Debug)]
pub struct TooManyLookups;

impl KeyLookups {
    /// Counts with `limiter`.
    pub fn new(limiter: Arc<dyn RateLimiter>, (limit, per_minute): (FailureLimit, u32), clock: Arc<dyn Clock>) -> Self {
        Self { limiter, limit, per_minute, clock, table: Mutex::default() }
    }

    /// Waits until an API key may be looked up.
    pub async fn begin(self: &Arc<Self>, client: IpAddr, key: &str) -> Result<KeyLookup, TooManyLookups> {
        let mut digest = KeyDigest::default();
        digest.copy_from_slice(&Sha256::digest(key.as_bytes())[..16]);
        let lookups = self.lock().limit_of(Network::of_client(client), &digest, self.clock.since_boot());
        let permits = match lookups {
            None => None,
            Some(lookups) => {
                let place = lookups.places.clone().try_acquire_owned().map_err(|_| TooManyLookups)?;
                let turn = lookups.turns.clone().acquire_owned().await.map_err(|_| TooManyLookups)?;
                Some([place, turn])
            }
        };
        Ok(KeyLookup {
            lookups: self.clone(),
            client,
            digest,
            began_at: self.clock.since_boot(),
            has_ended: false,
            permits,
        })
    }

    /// Counts an invalid or missing credential.
    pub async fn count_failure(&self, client: IpAddr) -> RateLimitDecision {
        let decision = self.limiter.acquire(&[(self.limit)(client, self.per_minute)]).await;
        if !decision.allowed {
            self.lock().close(Network::of_client(client), self.clock.since_boot());
        }
        decision
    }

    fn lock(&self) -> MutexGuard<'_, LookupTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KeyLookup {
    /// Ends the lookup, and remembers whether the API key is valid. `is_valid` is `None` if the database did not answer. The caller has
    /// counted an invalid key with [`KeyLookups::count_failure`].
    pub fn end(mut self, is_valid: Option<bool>) {
        self.has_ended = true;
        let now = self.lookups.clock.since_boot();
        let valid = &mut self.lookups.lock().valid;
        match is_valid {
            Some(true) => valid.insert(self.digest, now),
            Some(false) => valid.remove(&self.digest),
            None => {}
        }
    }
}

impl Drop for KeyLookup {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let (lookups, client, permits) = (self.lookups.clone(), self.client, self.permits.take());
        let is_slow = lookups.clock.since_boot().saturating_sub(self.began_at) >= SLOW_LOOKUP;
        let is_counted = !is_slow && !lookups.lock().valid.contains(&self.digest);
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                if is_counted {
                    lookups.count_failure(client).await;
                }
                if permits.is_some() {
                    // The database may still work on the lookup.
                    sleep(ABANDONED_LOOKUP).await;
                }
                drop(permits);
            });
        }
    }
}

impl LookupTable {
    /// The limit for the lookup of an API key; `None` if it is not limited.
    fn limit_of(&self, client: Network, key: &KeyDigest, now: Duration) -> Option<Arc<Lookups>> {
        let closed = self.clients.get(&client).or(self.others.as_ref()).filter(|closed| closed.until > now)?;
        (!self.valid.contains(key)).then(|| closed.lookups.clone())
    }

    fn close(&mut self, client: Network, now: Duration) {
        if self.clients.len() >= MAX_CLIENTS && !self.clients.contains_key(&client) {
            self.clients.retain(|_, closed| closed.until > now);
        }
        let has_room = self.clients.len() < MAX_CLIENTS || self.clients.contains_key(&client);
        let closed = if has_room {
            self.clients.entry(client).or_insert_with(ClosedClient::new)
        } else {
            self.others.get_or_insert_with(ClosedClient::new)
        };
        closed.until = now + CLOSED_TIME;
    }
}

impl ClosedClient {
    fn new() -> Self {
        let [turns, places] = [CONCURRENT_LOOKUPS, MAX_LOOKUPS].map(|count| Arc::new(Semaphore::new(count)));
        Self { until: Duration::ZERO, lookups: Arc::new(Lookups { turns, places }) }
    }
}

impl ValidKeys {
    fn contains(&self, key: &KeyDigest) -> bool {
        self.newer.contains(key) || self.older.contains(key)
    }

    fn insert(&mut self, key: KeyDigest, now: Duration) {
        if now >= self.next_generation || self.newer.len() >= MAX_VALID {
            self.older = std::mem::take(&mut self.newer);
            self.next_generation = now + VALID_TIME;
        }
        self.newer.insert(key);
    }

    fn remove(&mut self, key: &KeyDigest) {
        self.newer.remove(key);
        self.older.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ephemeral::{CallerKind, ClientNetwork, MemoryRateLimiter, Quota, RateLimitKey};
    use countersign_test_engines::ManualClock;
    use futures_util::FutureExt as _;

    fn limit(address: IpAddr, max_calls: u32) -> RateLimit {
        let caller = CallerKind::Unauthenticated(ClientNetwork::new(0, address));
        let key = RateLimitKey::new(caller, &[&Network::of_client(address).octets()]);
        RateLimit { key, quota: Quota { max_calls, window: Duration::from_mins(1) } }
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// Lookups with a limit of one failure.
    fn lookups(clock: Arc<ManualClock>) -> Arc<KeyLookups> {
        Arc::new(KeyLookups::new(Arc::new(MemoryRateLimiter::new(1000, clock.clone())), (limit, 1), clock))
    }

    #[tokio::test]
    async fn lookups_of_a_client_over_the_limit_wait_except_for_keys_that_were_valid() {
        let clock = ManualClock::new();
        let lookups = lookups(clock.clone());
        let (client, other) = (address("192.0.2.1"), address("192.0.2.2"));
        lookups.begin(client, "valid").await.unwrap().end(Some(true));
        assert!(lookups.count_failure(client).await.allowed);
        let unlimited: Vec<_> = (0..100).map(|_| lookups.begin(client, "unknown").now_or_never().unwrap()).collect();
        for lookup in unlimited {
            lookup.unwrap().end(Some(false));
        }
        assert!(!lookups.count_failure(client).await.allowed);
        let first = lookups.begin(client, "unknown").await.unwrap();
        let second = lookups.begin(client, "unknown").await.unwrap();
        let mut waiting = Box::pin(lookups.begin(client, "new"));
        assert!(waiting.as_mut().now_or_never().is_none());
        lookups.begin(client, "valid").now_or_never().unwrap().unwrap().end(Some(true));
        assert!(lookups.begin(other, "new").now_or_never().is_some());
        first.end(Some(false));
        waiting.await.unwrap().end(Some(true));
        assert!(lookups.begin(client, "new").now_or_never().is_some());
        // A key that is no longer valid waits like an unknown one.
        let third = lookups.begin(client, "unknown").await.unwrap();
        lookups.begin(client, "valid").await.unwrap().end(Some(false));
        assert!(lookups.begin(client, "valid").now_or_never().is_none());
        clock.advance(CLOSED_TIME);
        assert!(lookups.begin(client, "unknown").now_or_never().is_some());
        drop((second, third));
    }

    #[tokio::test]
    async fn abandoned_lookup_counts_as_failed_unless_the_key_was_valid_or_the_database_is_slow() {
        let clock = ManualClock::new();
        let lookups = lookups(clock.clone());
        let [client, other] = ["192.0.2.1", "192.0.2.2"].map(address);
        lookups.begin(other, "valid").await.unwrap().end(Some(true));
        for (client, key) in [(client, "unknown"), (other, "valid"), (other, "valid")] {
            drop(lookups.begin(client, key).await.unwrap());
        }
        let slow = lookups.begin(other, "unknown").await.unwrap();
        clock.advance(SLOW_LOOKUP);
        drop(slow);
        // Runs the tasks that count.
        tokio::task::yield_now().await;
        assert!(!lookups.count_failure(client).await.allowed);
        assert!(lookups.count_failure(other).await.allowed);
        // The database may still work on the lookups, so they keep their places.
        let [first, second] = [lookups.begin(client, "unknown").await, lookups.begin(client, "unknown").await];
        drop((first, second));
        assert!(lookups.begin(client, "unknown").now_or_never().is_none());
    }

    #[tokio::test]
    async fn few_lookups_wait() {
        let lookups = lookups(ManualClock::new());
        let client = address("2001:db8::1");
        for _ in 0..2 {
            lookups.count_failure(client).await;
        }
        let mut waiting: Vec<_> = (0..=MAX_LOOKUPS).map(|_| Box::pin(lookups.begin(client, "unknown"))).collect();
        let done: Vec<_> = waiting.iter_mut().map(|lookup| lookup.as_mut().now_or_never()).collect();
        assert!(matches!(done.last(), Some(Some(Err(TooManyLookups)))));
        assert_eq!(done.iter().filter(|result| result.is_none()).count(), MAX_LOOKUPS - CONCURRENT_LOOKUPS);
    }

    #[test]
    fn remembered_clients_and_keys_are_bounded() {
        let mut table = LookupTable::default();
        let client = |number: usize| Network::of_client(IpAddr::from(u32::try_from(number).unwrap().to_be_bytes()));
        let now = Duration::from_hours(1);
        for number in 0..=MAX_CLIENTS {
            table.close(client(number), now);
        }
        assert_eq!(table.clients.len(), MAX_CLIENTS);
        assert!(table.limit_of(client(MAX_CLIENTS), &[0; 16], now).is_some());
        for number in 0..3 * MAX_VALID as u128 {
            table.valid.insert(number.to_be_bytes(), now);
        }
        assert!(table.valid.newer.len() + table.valid.older.len() <= 2 * MAX_VALID);
        table.close(client(MAX_CLIENTS + 1), now + CLOSED_TIME);
        assert_eq!(table.clients.len(), 1);
    }
}
