//! A rate limiter in the memory of this process. For each key, it stores the times of the calls in the last window.
//!
//! Memory is bounded: each kind of caller has a table, and a full table forgets the windows that were unused for longest. So an
//! attacker can exceed a quota, but must first make calls under tens of thousands of other keys, which also have quotas.

mod call_log;

use super::rate_limit::{
    CallerKind, DecisionFuture, QuotaStatus, RateLimit, RateLimitBackend, RateLimitDecision, RateLimitKey, RateLimiter,
};
use call_log::{CallLog, micros};
use countersign_process::Clock;
use std::{
    collections::HashMap,
    mem,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// A full table keeps at least this many windows. A window takes about 200 bytes, and 8 more for each call in it.
const WINDOWS_KEPT: usize = 1 << 16;

/// Counts calls in memory.
pub struct MemoryRateLimiter {
    clock: Arc<dyn Clock>,
    tables: Mutex<Tables>,
}

/// The windows by kind of caller, so that strangers cannot push out the windows of authenticated callers.
struct Tables {
    authenticated: Windows,
    agents: Windows,
    unauthenticated: Windows,
}

/// The windows of one kind of caller, all of the same length, in two generations. Counting a call moves its window to the newer
/// generation. At intervals, the newer generation replaces the older one (see [`Self::count`]).
struct Windows {
    kept: usize,
    newer: HashMap<RateLimitKey, CallLog>,
    older: HashMap<RateLimitKey, CallLog>,
    /// When the newer generation began, in microseconds since boot.
    began_at: u64,
}

impl MemoryRateLimiter {
    /// Creates a limiter that has counted no calls.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self::keeping(WINDOWS_KEPT, clock)
    }

    fn keeping(kept: usize, clock: Arc<dyn Clock>) -> Self {
        let [authenticated, agents, unauthenticated] = [(); 3].map(|()| Windows::new(kept));
        Self { clock, tables: Mutex::new(Tables { authenticated, agents, unauthenticated }) }
    }

    fn decide_now(&self, limits: &[RateLimit], count_call: bool) -> RateLimitDecision {
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        // The clock is read while the tables are locked, so that the calls in each window are in order of time.
        let now = micros(self.clock.since_boot());
        let statuses: Vec<_> = limits.iter().map(|limit| tables.of(limit).status(limit, now)).collect();
        let allowed = statuses.iter().all(|status| status.remaining > 0);
        if !allowed || !count_call {
            return RateLimitDecision { allowed, statuses };
        }
        let statuses = limits.iter().map(|limit| tables.of(limit).count(limit, now)).collect();
        RateLimitDecision { allowed, statuses }
    }
}

impl RateLimiter for MemoryRateLimiter {
    fn decide<'a>(&'a self, limits: &'a [RateLimit], count_call: bool) -> DecisionFuture<'a> {
        Box::pin(async move { self.decide_now(limits, count_call) })
    }

    fn backend(&self) -> RateLimitBackend {
        RateLimitBackend::Memory
    }
}

impl Tables {
    fn of(&mut self, limit: &RateLimit) -> &mut Windows {
        match limit.key.caller {
            CallerKind::Authenticated => &mut self.authenticated,
            CallerKind::Agent => &mut self.agents,
            CallerKind::Unauthenticated => &mut self.unauthenticated,
        }
    }
}

impl Windows {
    fn new(kept: usize) -> Self {
        Self { kept, newer: HashMap::new(), older: HashMap::new(), began_at: 0 }
    }

    /// The status of a limit before a call is counted.
    fn status(&mut self, limit: &RateLimit, now: u64) -> QuotaStatus {
        match self.newer.get_mut(&limit.key).or_else(|| self.older.get_mut(&limit.key)) {
            Some(log) => {
                log.remove_expired(now);
                log.status(limit.quota.max_calls, now)
            }
            None => QuotaStatus { remaining: limit.quota.max_calls, reset_after: Duration::ZERO },
        }
    }

    /// Counts a call. Returns the status of the limit after it.
    fn count(&mut self, limit: &RateLimit, now: u64) -> QuotaStatus {
        let window = micros(limit.quota.window);
        // If the newer generation began a window ago, all windows in the older one have expired. If the newer one is full, we
        // forget the older one.
        if now.saturating_sub(self.began_at) >= window || self.newer.len() >= self.kept {
            self.older = mem::take(&mut self.newer);
            self.began_at = now;
        }
        let older = self.older.remove(&limit.key);
        let log = self.newer.entry(limit.key).or_insert_with(|| older.unwrap_or_default());
        log.count(window, now);
        log.status(limit.quota.max_calls, now)
    }
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
    fn full_table_forgets_the_windows_that_were_not_used_for_longest() {
        use CallerKind::{Authenticated, Unauthenticated};
        let clock = Arc::new(ManualClock::default());
        let limiter = MemoryRateLimiter::keeping(10, clock);
        let is_allowed = |limit: RateLimit| limiter.decide_now(&[limit], true).allowed;
        assert!(is_allowed(limit(Authenticated, 0, 1)) && is_allowed(limit(Unauthenticated, 0, 2)));
        for id in 1..10 {
            assert!(is_allowed(limit(Unauthenticated, id, 1)));
        }
        assert!(is_allowed(limit(Unauthenticated, 0, 2)), "this one is used again");
        for id in 10..19 {
            assert!(is_allowed(limit(Unauthenticated, id, 1)));
        }
        assert!(!is_allowed(limit(Unauthenticated, 0, 2)), "ten windows were used since");
        for id in 19..1000 {
            assert!(is_allowed(limit(Unauthenticated, id, 1)));
        }
        assert!(!is_allowed(limit(Authenticated, 0, 1)), "strangers have another table");
        let tables = limiter.tables.lock().unwrap();
        assert!(tables.unauthenticated.newer.len() + tables.unauthenticated.older.len() <= 20);
    }

    #[test]
    fn expired_windows_are_removed() {
        let clock = Arc::new(ManualClock::default());
        let limiter = MemoryRateLimiter::new(clock.clone());
        for id in 0..1000 {
            limiter.decide_now(&[limit(CallerKind::Unauthenticated, id, 1)], true);
        }
        for _ in 0..2 {
            clock.advance(WINDOW);
            limiter.decide_now(&[limit(CallerKind::Unauthenticated, 1, 1)], true);
        }
        let tables = limiter.tables.lock().unwrap();
        assert_eq!(tables.unauthenticated.newer.len() + tables.unauthenticated.older.len(), 1);
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
                let decision = limiter.decide_now(&[limit(CallerKind::Unauthenticated, 7, max_calls)], true);
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
