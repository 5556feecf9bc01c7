//! The tests that every implementation of [`RateLimiter`] must pass.

use super::{CallerKind, Quota, QuotaStatus, RateLimit, RateLimitDecision, RateLimitKey, RateLimiter};
use std::{sync::Arc, time::Duration};
use tokio::task::JoinSet;

/// Calls per window that the tests allow to each key.
const MAX_CALLS: u32 = 3;

/// Number of equal steps into which a test divides a window.
const STEPS_PER_WINDOW: u32 = 10;

/// Number of concurrent calls in a test.
const CONCURRENT_CALLS: usize = 50;

/// The limiter under test, the length of its windows, the precision of its clock, and a function that lets time pass.
struct RateLimiterFixture<Sleep> {
    limiter: Arc<dyn RateLimiter>,
    window: Duration,
    precision: Duration,
    sleep: Sleep,
}

/// The time after which a refused call is allowed; zero for an allowed call.
pub fn retry_after(decision: &RateLimitDecision) -> Duration {
    let exhausted = decision.statuses.iter().filter(|status| !decision.allowed && status.remaining == 0);
    exhausted.map(|status| status.reset_after).max().unwrap_or_default()
}

/// Runs all tests against a rate limiter. `sleep` lets time pass; `precision` is the precision with which the limiter measures
/// time.
pub async fn assert_conforms(
    limiter: Arc<dyn RateLimiter>,
    window: Duration,
    precision: Duration,
    sleep: impl AsyncFn(Duration),
) {
    let fixture = RateLimiterFixture { limiter, window, precision, sleep };
    fixture.allows_the_quota_and_then_one_call_per_expired_call().await;
    fixture.does_not_count_refused_calls().await;
    fixture.counts_each_key_separately().await;
    fixture.counts_against_all_limits_or_none().await;
    fixture.peek_does_not_count_calls().await;
    fixture.concurrent_calls_do_not_exceed_the_quota().await;
}

impl<Sleep: AsyncFn(Duration)> RateLimiterFixture<Sleep> {
    fn limit(&self, name: &str) -> RateLimit {
        let key = RateLimitKey::new(CallerKind::Unauthenticated, &[b"conformance", name.as_bytes()]);
        RateLimit { key, quota: Quota { max_calls: MAX_CALLS, window: self.window } }
    }

    async fn is_allowed(&self, limits: &[RateLimit]) -> bool {
        self.limiter.acquire(limits).await.allowed
    }

    /// Whether two durations are equal within the precision of the limiter's clock.
    fn is_approximately(&self, actual: Duration, expected: Duration) -> bool {
        actual.abs_diff(expected) <= self.precision
    }

    async fn allows_the_quota_and_then_one_call_per_expired_call(&self) {
        let limit = [self.limit("one")];
        let step = self.window / STEPS_PER_WINDOW;
        for expected in (0..MAX_CALLS).rev() {
            let decision = self.limiter.acquire(&limit).await;
            assert!(decision.allowed && retry_after(&decision).is_zero(), "{decision:?}");
            let [QuotaStatus { remaining, reset_after }] = decision.statuses[..] else { panic!("{decision:?}") };
            assert_eq!(remaining, expected);
            // The first call was counted `MAX_CALLS - 1 - expected` steps ago, so it expires this many steps before a whole window
            // is over.
            assert!(
                self.is_approximately(reset_after, step * (STEPS_PER_WINDOW + 1 + expected - MAX_CALLS)),
                "{reset_after:?}"
            );
            (self.sleep)(step).await;
        }
        // The window slides: each call expires exactly one window after it was made. Just before its end, a new call is refused.
        for _ in 0..MAX_CALLS {
            let refused = self.limiter.acquire(&limit).await;
            assert!(!refused.allowed && refused.statuses[0].remaining == 0, "{refused:?}");
            let wait = retry_after(&refused);
            assert!(wait > Duration::ZERO && wait <= step * (STEPS_PER_WINDOW - 2), "{wait:?}");
            // Just before the end of the wait, a call is refused; at the end, it is allowed.
            (self.sleep)(wait.saturating_sub(self.precision)).await;
            assert!(wait <= self.precision || !self.is_allowed(&limit).await, "allowed too early");
            (self.sleep)(self.precision).await;
            assert!(self.is_allowed(&limit).await, "not allowed after {wait:?}");
        }
    }

    async fn does_not_count_refused_calls(&self) {
        let limit = [self.limit("refused calls")];
        for _ in 0..MAX_CALLS {
            assert!(self.is_allowed(&limit).await);
        }
        for _ in 0..10 {
            assert!(!self.is_allowed(&limit).await);
        }
        (self.sleep)(self.window).await;
        for _ in 0..MAX_CALLS {
            assert!(self.is_allowed(&limit).await);
        }
        assert!(!self.is_allowed(&limit).await);
    }

    async fn counts_each_key_separately(&self) {
        let (first, second) = ([self.limit("first")], [self.limit("second")]);
        for _ in 0..MAX_CALLS {
            assert!(self.is_allowed(&first).await);
        }
        assert!(!self.is_allowed(&first).await);
        let decision = self.limiter.acquire(&second).await;
        assert!(decision.allowed && decision.statuses[0].remaining == MAX_CALLS - 1, "{decision:?}");
    }

    async fn counts_against_all_limits_or_none(&self) {
        let (exhausted, other) = (self.limit("exhausted"), self.limit("other"));
        for _ in 0..MAX_CALLS {
            assert!(self.is_allowed(&[exhausted]).await);
        }
        for limits in [[exhausted, other], [other, exhausted]] {
            let refused = self.limiter.acquire(&limits).await;
            assert!(!refused.allowed && refused.statuses.len() == 2, "{refused:?}");
            assert!(retry_after(&refused) > Duration::ZERO && retry_after(&refused) <= self.window);
        }
        for expected in (0..MAX_CALLS).rev() {
            let decision = self.limiter.acquire(&[other]).await;
            assert!(decision.allowed && decision.statuses[0].remaining == expected, "{decision:?}");
        }
    }

    async fn peek_does_not_count_calls(&self) {
        let limit = [self.limit("peeked")];
        for _ in 0..10 {
            let decision = self.limiter.peek(&limit).await;
            assert!(decision.allowed && decision.statuses[0].remaining == MAX_CALLS, "{decision:?}");
        }
        for _ in 0..MAX_CALLS {
            assert!(self.is_allowed(&limit).await);
        }
        let decision = self.limiter.peek(&limit).await;
        assert!(!decision.allowed && retry_after(&decision) > Duration::ZERO, "{decision:?}");
    }

    async fn concurrent_calls_do_not_exceed_the_quota(&self) {
        let limit = self.limit("concurrent calls");
        let mut calls = JoinSet::new();
        for _ in 0..CONCURRENT_CALLS {
            let limiter = Arc::clone(&self.limiter);
            calls.spawn(async move { limiter.acquire(&[limit]).await.allowed });
        }
        let allowed = calls.join_all().await.into_iter().filter(|allowed| *allowed).count();
        assert_eq!(allowed, MAX_CALLS as usize);
    }
}
