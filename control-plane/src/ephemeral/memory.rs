//! A rate limiter in the memory of this process. For each key, the limiter stores the times of the calls in the last window.
//!
//! The number of windows is bounded, and a live window is never forgotten. Authenticated callers have a separate table, which
//! unauthenticated callers cannot fill; if it is full, it refuses *new* keys. If the table of unauthenticated callers is full,
//! the networks with the most windows get common windows ([`network_windows`]).

mod call_log;
mod network_windows;

use super::rate_limit::{
    CallerKind, DecisionFuture, QuotaStatus, RateLimit, RateLimitBackend, RateLimitDecision, RateLimitKey, RateLimiter,
};
use call_log::{CallLog, micros};
use countersign_process::Clock;
use network_windows::{NetworkWindows, RemovedWindows};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// Maximum number of windows of authenticated callers. A window takes about 200 bytes, and 8 more for each call in it.
const AUTHENTICATED_CAPACITY: usize = 1 << 18;

/// Maximum number of windows of agents: more than the logins and refreshes that a database writes in a minute.
const AGENT_CAPACITY: usize = 1 << 17;

/// Default of the maximum number of windows of unauthenticated callers. A window takes about 600 bytes if each is of another
/// network, and 8 more for each call in it.
pub const MAX_UNAUTHENTICATED_WINDOWS: usize = 1 << 17;

/// Minimum time between two scans of a full table for expired entries, in microseconds.
const MIN_SCAN_INTERVAL: u64 = 1_000_000;

/// Counts calls in memory.
pub struct MemoryRateLimiter {
    clock: Arc<dyn Clock>,
    tables: Mutex<Tables>,
}

struct Tables {
    authenticated: RateLimitWindows,
    agents: RateLimitWindows,
    unauthenticated: NetworkWindows,
    unauthenticated_capacity: usize,
}

/// The windows of callers of one kind.
struct RateLimitWindows {
    capacity: usize,
    entries: HashMap<RateLimitKey, CallLog>,
    /// When the table was last scanned for expired entries, in microseconds since boot.
    scanned_at: u64,
}

impl MemoryRateLimiter {
    /// A rate limiter without counted calls, and with at most this number of windows of unauthenticated callers.
    pub fn new(max_unauthenticated_windows: usize, clock: Arc<dyn Clock>) -> Self {
        Self::with_capacity(AUTHENTICATED_CAPACITY, max_unauthenticated_windows, clock)
    }

    fn with_capacity(authenticated_capacity: usize, unauthenticated_capacity: usize, clock: Arc<dyn Clock>) -> Self {
        let tables = Tables {
            authenticated: RateLimitWindows::new(authenticated_capacity),
            agents: RateLimitWindows::new(AGENT_CAPACITY),
            unauthenticated: NetworkWindows::default(),
            unauthenticated_capacity,
        };
        Self { clock, tables: Mutex::new(tables) }
    }

    fn decide(&self, limits: &[RateLimit], count_call: bool) -> RateLimitDecision {
        let mut removed = RemovedWindows::new();
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        // The clock is read while the tables are locked, so that the calls in each call log are in order of time.
        let decision = tables.decide(limits, count_call, micros(self.clock.since_boot()), &mut removed);
        drop(tables);
        drop(removed);
        decision
    }
}

impl RateLimiter for MemoryRateLimiter {
    fn acquire<'a>(&'a self, limits: &'a [RateLimit]) -> DecisionFuture<'a> {
        Box::pin(async { self.decide(limits, true) })
    }

    fn peek<'a>(&'a self, limits: &'a [RateLimit]) -> DecisionFuture<'a> {
        Box::pin(async { self.decide(limits, false) })
    }

    fn backend(&self) -> RateLimitBackend {
        RateLimitBackend::Memory
    }

    fn common_windows(&self) -> usize {
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        tables.unauthenticated.remove_expired(micros(self.clock.since_boot()));
        tables.unauthenticated.common_windows()
    }
}

impl Tables {
    fn decide(
        &mut self,
        limits: &[RateLimit],
        count_call: bool,
        now: u64,
        removed: &mut RemovedWindows,
    ) -> RateLimitDecision {
        self.unauthenticated.remove_expired(now);
        let mut decision = self.peek(limits, now);
        let new_windows = limits.iter().filter(|limit| self.is_new_window(limit)).count();
        if count_call && decision.allowed && self.unauthenticated.len() + new_windows > self.unauthenticated_capacity {
            let max_len = (self.unauthenticated_capacity + 1).saturating_sub(new_windows);
            if !self.unauthenticated.make_room(max_len, now, removed) {
                return refuse_new_windows(limits, decision, |limit| self.is_new_window(limit));
            }
            // A key of the call may have a common window now, which may be exhausted.
            decision = self.peek(limits, now);
        }
        if !count_call || !decision.allowed {
            return decision;
        }
        let count = |limit: &RateLimit| match limit.key.caller {
            CallerKind::Authenticated => self.authenticated.count(limit, now),
            CallerKind::Agent => self.agents.count(limit, now),
            CallerKind::Unauthenticated(network) => {
                self.unauthenticated.count(network, limit.key.digest, limit.quota, now)
            }
        };
        RateLimitDecision { allowed: true, statuses: limits.iter().map(count).collect() }
    }

    /// The decision before the current call is counted.
    fn peek(&mut self, limits: &[RateLimit], now: u64) -> RateLimitDecision {
        let status = |limit: &RateLimit| match limit.key.caller {
            CallerKind::Authenticated => self.authenticated.status(limit, now),
            CallerKind::Agent => self.agents.status(limit, now),
            CallerKind::Unauthenticated(network) => {
                self.unauthenticated.status(network, &limit.key.digest, limit.quota, now)
            }
        };
        let statuses: Vec<_> = limits.iter().map(status).collect();
        RateLimitDecision { allowed: statuses.iter().all(|status| status.remaining > 0), statuses }
    }

    /// Whether counting a call would add a window of an unauthenticated caller.
    fn is_new_window(&mut self, limit: &RateLimit) -> bool {
        match limit.key.caller {
            CallerKind::Authenticated | CallerKind::Agent => false,
            CallerKind::Unauthenticated(network) => !self.unauthenticated.contains(network, &limit.key.digest),
        }
    }
}

/// The decision if there is no room for a new window.
fn refuse_new_windows(
    limits: &[RateLimit],
    decision: RateLimitDecision,
    mut is_new: impl FnMut(&RateLimit) -> bool,
) -> RateLimitDecision {
    let status = |(limit, status): (&RateLimit, QuotaStatus)| {
        if is_new(limit) { QuotaStatus { remaining: 0, reset_after: limit.quota.window } } else { status }
    };
    RateLimitDecision { allowed: false, statuses: limits.iter().zip(decision.statuses).map(status).collect() }
}

impl RateLimitWindows {
    fn new(capacity: usize) -> Self {
        Self { capacity, entries: HashMap::new(), scanned_at: 0 }
    }

    /// The status of a limit before the current call is counted. A new key has no remaining calls if the table is full.
    fn status(&mut self, limit: &RateLimit, now: u64) -> QuotaStatus {
        self.remove_expired(micros(limit.quota.window), now);
        let is_full = self.entries.len() >= self.capacity;
        match self.entries.get_mut(&limit.key) {
            Some(log) => {
                log.remove_expired(now);
                log.status(limit.quota.max_calls, now)
            }
            None if is_full => QuotaStatus { remaining: 0, reset_after: limit.quota.window },
            None => QuotaStatus { remaining: limit.quota.max_calls, reset_after: Duration::ZERO },
        }
    }

    fn count(&mut self, limit: &RateLimit, now: u64) -> QuotaStatus {
        let log = self.entries.entry(limit.key).or_default();
        log.count(limit.quota, now);
        log.status(limit.quota.max_calls, now)
    }

    /// Removes expired entries. Scans the table at most once per window, or more often while it is full.
    fn remove_expired(&mut self, window: u64, now: u64) {
        let interval = if self.entries.len() >= self.capacity { MIN_SCAN_INTERVAL.min(window) } else { window };
        if now.saturating_sub(self.scanned_at) < interval {
            return;
        }
        self.scanned_at = now;
        self.entries.retain(|_, log| !log.is_expired(now));
        if self.entries.len() < self.entries.capacity() / 4 {
            self.entries.shrink_to_fit();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ephemeral::{
        ClientNetwork, Quota,
        conformance::{assert_conforms, retry_after},
    };
    use countersign_identity::Timestamp;
    use proptest::prelude::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    const WINDOW: Duration = Duration::from_mins(1);

    /// A clock that only advances when a test calls [`Self::advance`].
    #[derive(Default)]
    struct ManualClock(AtomicU64);

    impl Clock for ManualClock {
        fn now(&self) -> Timestamp {
            Timestamp::from_micros(0)
        }

        fn since_boot(&self) -> Duration {
            Duration::from_micros(self.0.load(Ordering::SeqCst))
        }
    }

    impl ManualClock {
        fn advance(&self, span: Duration) {
            self.0.fetch_add(micros(span), Ordering::SeqCst);
        }
    }

    /// A caller in the network 192.0.2.0/24.
    fn unauthenticated() -> CallerKind {
        CallerKind::Unauthenticated(ClientNetwork::new(0, [192, 0, 2, 0].into()))
    }

    fn limit(caller: CallerKind, id: u32, max_calls: u32) -> RateLimit {
        let key = RateLimitKey::new(caller, &[&id.to_be_bytes()]);
        RateLimit { key, quota: Quota { max_calls, window: WINDOW } }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn memory_rate_limiter_conforms() {
        let clock = Arc::new(ManualClock::default());
        let limiter = Arc::new(MemoryRateLimiter::new(MAX_UNAUTHENTICATED_WINDOWS, clock.clone()));
        assert_conforms(limiter, WINDOW, Duration::from_micros(1), async |span| clock.advance(span)).await;
    }

    #[test]
    fn full_table_of_authenticated_callers_drops_expired_keys_and_refuses_new_ones() {
        use CallerKind::Authenticated;
        let clock = Arc::new(ManualClock::default());
        let limiter = MemoryRateLimiter::with_capacity(3, 3, clock.clone());
        let acquire = |limit: RateLimit| limiter.decide(&[limit], true);
        for id in 0..3 {
            clock.advance(Duration::from_secs(1));
            assert!(acquire(limit(Authenticated, id, 2)).allowed);
        }
        let refused = acquire(limit(Authenticated, 3, 2));
        assert!(!refused.allowed);
        assert_eq!(retry_after(&refused), WINDOW);
        assert!(acquire(limit(Authenticated, 0, 2)).allowed, "a key in the table keeps its quota");
        assert!(!acquire(limit(Authenticated, 0, 2)).allowed, "the quota of that key is exhausted");
        assert!(acquire(limit(unauthenticated(), 3, 2)).allowed, "unauthenticated callers have another table");
        // After 59 more seconds, key 1 has expired, key 0 is still live because of its second call, and key 2 is still live.
        clock.advance(Duration::from_secs(59));
        assert!(acquire(limit(Authenticated, 3, 2)).allowed);
        assert!(!acquire(limit(Authenticated, 4, 2)).allowed);
        assert!(!acquire(limit(Authenticated, 0, 1)).allowed, "a live window is never evicted");
    }

    #[test]
    fn expired_entries_are_removed() {
        let clock = Arc::new(ManualClock::default());
        let limiter = MemoryRateLimiter::new(MAX_UNAUTHENTICATED_WINDOWS, clock.clone());
        for id in 0..1000 {
            limiter.decide(&[limit(CallerKind::Authenticated, id, 1), limit(unauthenticated(), id, 1)], true);
        }
        clock.advance(WINDOW);
        limiter.decide(&[limit(CallerKind::Authenticated, 1, 1), limit(unauthenticated(), 1, 1)], true);
        let tables = limiter.tables.lock().unwrap();
        assert!(tables.authenticated.entries.len() == 1 && tables.authenticated.entries.capacity() < 100);
        assert_eq!(tables.unauthenticated.len(), 1);
    }

    proptest! {
        /// Compares each decision with one that is computed from the times of all allowed calls.
        #[test]
        fn any_window_allows_exactly_the_quota(
            max_calls in 1_u32..6,
            pauses in prop::collection::vec(prop_oneof![
                0_u64..5, 0_u64..20_000_000, Just(60_000_000), Just(59_999_999), 0_u64..130_000_000,
            ], 1..60),
        ) {
            let clock = Arc::new(ManualClock::default());
            let limiter = MemoryRateLimiter::new(MAX_UNAUTHENTICATED_WINDOWS, clock.clone());
            let (mut now, mut allowed_at) = (0_u64, Vec::<u64>::new());
            for pause in pauses {
                clock.advance(Duration::from_micros(pause));
                now += pause;
                let in_last_window = allowed_at.iter().filter(|at| now - **at < 60_000_000).count();
                let decision = limiter.decide(&[limit(unauthenticated(), 7, max_calls)], true);
                prop_assert_eq!(decision.allowed, in_last_window < max_calls as usize, "at {}", now);
                if decision.allowed {
                    allowed_at.push(now);
                } else {
                    let oldest = allowed_at[allowed_at.len() - max_calls as usize];
                    prop_assert_eq!(retry_after(&decision), Duration::from_micros(oldest + 60_000_000 - now));
                }
            }
            for (first, at) in allowed_at.iter().enumerate() {
                let in_window = allowed_at[first..].iter().filter(|other| **other - at < 60_000_000).count();
                prop_assert!(in_window <= max_calls as usize);
            }
        }
    }
}
