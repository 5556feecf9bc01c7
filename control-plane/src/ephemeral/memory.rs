//! A rate limiter in the memory of this process. For each key, the limiter stores the times of the calls in the last window.
//!
//! The number of keys is bounded. A full table first removes expired entries and then refuses *new* keys: a live window is
//! never evicted. Authenticated callers have a separate table, which unauthenticated callers cannot fill.

use super::rate_limit::{
    CallerKind, DecisionFuture, QuotaStatus, RateLimit, RateLimitBackend, RateLimitDecision, RateLimitKey, RateLimiter,
};
use countersign_process::Clock;
use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// Maximum number of keys in each of the two tables (of authenticated and of unauthenticated callers). A key takes about 200
/// bytes, and 8 more for each call in its window.
const CAPACITY: usize = 1 << 18;

/// Minimum time between two scans of a full table for expired entries, in microseconds.
const MIN_SCAN_INTERVAL: u64 = 1_000_000;

/// Counts calls in memory.
pub struct MemoryRateLimiter {
    clock: Arc<dyn Clock>,
    capacity: usize,
    tables: Mutex<Tables>,
}

#[derive(Default)]
struct Tables {
    authenticated: RateLimitWindows,
    unauthenticated: RateLimitWindows,
}

#[derive(Default)]
struct RateLimitWindows {
    entries: HashMap<RateLimitKey, CallLog>,
    /// When the table was last scanned for expired entries, in microseconds since boot.
    scanned_at: u64,
}

/// The calls of one key within its window, in microseconds since boot, oldest first.
#[derive(Default)]
struct CallLog {
    window: u64,
    calls: VecDeque<u64>,
}

impl MemoryRateLimiter {
    /// A rate limiter without counted calls.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self::with_capacity(CAPACITY, clock)
    }

    fn with_capacity(capacity: usize, clock: Arc<dyn Clock>) -> Self {
        Self { clock, capacity, tables: Mutex::default() }
    }

    fn decide(&self, limits: &[RateLimit], count_call: bool) -> RateLimitDecision {
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        // The clock is read while the tables are locked, so that the calls in each call log are in order of time.
        let now = micros(self.clock.since_boot());
        let statuses: Vec<_> =
            limits.iter().map(|limit| tables.for_key(limit.key).status(limit, now, self.capacity)).collect();
        let allowed = statuses.iter().all(|status| status.remaining > 0);
        if !count_call || !allowed {
            return RateLimitDecision { allowed, statuses };
        }
        let statuses = limits.iter().map(|limit| tables.for_key(limit.key).count(limit, now)).collect();
        RateLimitDecision { allowed, statuses }
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
}

impl Tables {
    const fn for_key(&mut self, key: RateLimitKey) -> &mut RateLimitWindows {
        match key.caller {
            CallerKind::Authenticated => &mut self.authenticated,
            CallerKind::Unauthenticated => &mut self.unauthenticated,
        }
    }
}

impl RateLimitWindows {
    /// The status of a limit before the current call is counted. A new key has no remaining calls if the table is full.
    fn status(&mut self, limit: &RateLimit, now: u64, capacity: usize) -> QuotaStatus {
        self.remove_expired(micros(limit.quota.window), now, capacity);
        let is_full = self.entries.len() >= capacity;
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
        log.window = micros(limit.quota.window);
        log.calls.push_back(now);
        log.status(limit.quota.max_calls, now)
    }

    /// Removes expired entries. Scans the table at most once per window, or more often while it is full.
    fn remove_expired(&mut self, window: u64, now: u64, capacity: usize) {
        let interval = if self.entries.len() >= capacity { MIN_SCAN_INTERVAL.min(window) } else { window };
        if now.saturating_sub(self.scanned_at) < interval {
            return;
        }
        self.scanned_at = now;
        self.entries.retain(|_, log| log.calls.back().is_some_and(|last| now.saturating_sub(*last) < log.window));
        if self.entries.len() < self.entries.capacity() / 4 {
            self.entries.shrink_to_fit();
        }
    }
}

impl CallLog {
    fn remove_expired(&mut self, now: u64) {
        while self.calls.front().is_some_and(|first| now.saturating_sub(*first) >= self.window) {
            self.calls.pop_front();
        }
    }

    fn status(&self, max_calls: u32, now: u64) -> QuotaStatus {
        let remaining = max_calls.saturating_sub(u32::try_from(self.calls.len()).unwrap_or(u32::MAX));
        let oldest_expires_in = self.calls.front().map(|first| first.saturating_add(self.window).saturating_sub(now));
        QuotaStatus { remaining, reset_after: Duration::from_micros(oldest_expires_in.unwrap_or_default()) }
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ephemeral::{
        Quota,
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

    fn limit(caller: CallerKind, id: u32, max_calls: u32) -> RateLimit {
        let key = RateLimitKey::new(caller, &[&id.to_be_bytes()]);
        RateLimit { key, quota: Quota { max_calls, window: WINDOW } }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn memory_rate_limiter_conforms() {
        let clock = Arc::new(ManualClock::default());
        let limiter = Arc::new(MemoryRateLimiter::new(clock.clone()));
        assert_conforms(limiter, WINDOW, Duration::from_micros(1), async |span| clock.advance(span)).await;
    }

    #[test]
    fn full_table_drops_expired_keys_and_refuses_new_ones() {
        use CallerKind::{Authenticated, Unauthenticated};
        let clock = Arc::new(ManualClock::default());
        let limiter = MemoryRateLimiter::with_capacity(3, clock.clone());
        let acquire = |limit: RateLimit| limiter.decide(&[limit], true);
        for id in 0..3 {
            clock.advance(Duration::from_secs(1));
            assert!(acquire(limit(Unauthenticated, id, 2)).allowed);
        }
        let refused = acquire(limit(Unauthenticated, 3, 2));
        assert!(!refused.allowed);
        assert_eq!(retry_after(&refused), WINDOW);
        assert!(acquire(limit(Unauthenticated, 0, 2)).allowed, "a key in the table keeps its quota");
        assert!(!acquire(limit(Unauthenticated, 0, 2)).allowed, "the quota of that key is exhausted");
        assert!(acquire(limit(Authenticated, 3, 2)).allowed, "authenticated callers have another table");
        // After 59 more seconds, key 1 has expired, key 0 is still live because of its second call, and key 2 is still live.
        clock.advance(Duration::from_secs(59));
        assert!(acquire(limit(Unauthenticated, 3, 2)).allowed);
        assert!(!acquire(limit(Unauthenticated, 4, 2)).allowed);
        assert!(!acquire(limit(Unauthenticated, 0, 1)).allowed, "a live window is never evicted");
    }

    #[test]
    fn expired_entries_are_removed() {
        let clock = Arc::new(ManualClock::default());
        let limiter = MemoryRateLimiter::new(clock.clone());
        for id in 0..1000 {
            limiter.decide(&[limit(CallerKind::Unauthenticated, id, 1)], true);
        }
        clock.advance(WINDOW);
        limiter.decide(&[limit(CallerKind::Unauthenticated, 1, 1)], true);
        let tables = limiter.tables.lock().unwrap();
        assert!(tables.unauthenticated.entries.len() == 1 && tables.unauthenticated.entries.capacity() < 100);
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
            let limiter = MemoryRateLimiter::new(clock.clone());
            let (mut now, mut allowed_at) = (0_u64, Vec::<u64>::new());
            for pause in pauses {
                clock.advance(Duration::from_micros(pause));
                now += pause;
                let in_last_window = allowed_at.iter().filter(|at| now - **at < 60_000_000).count();
                let decision = limiter.decide(&[limit(CallerKind::Unauthenticated, 7, max_calls)], true);
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
