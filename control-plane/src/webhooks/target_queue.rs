//! The leased deliveries of one target. Decides how many attempts may run at a time, and when to back off.
//!
//! The number of concurrent attempts to a target starts at one, increases by one with each success and halves with each failure.

use crate::{
    domain::webhook::delivery::{AttemptFailure, target_backoff},
    store::deliveries::LeasedDelivery,
};
use countersign_identity::Timestamp;
use std::{collections::VecDeque, time::Duration};

/// We lease this many deliveries for each attempt that may run at the same time. So a fast target always has a next delivery at hand.
pub const LEASES_PER_ATTEMPT: usize = 2;

/// The queue of one target. Times are durations since boot.
#[derive(Debug)]
pub struct TargetQueue {
    /// Maximum number of attempts in flight.
    concurrency: usize,
    /// Current number of attempts in flight.
    in_flight: usize,
    /// Leased deliveries without a current attempt.
    unsent: VecDeque<LeasedDelivery>,
    /// Number of consecutive failures.
    failures: u32,
    /// Time at which the last failure was counted.
    failed_at: Duration,
    /// Time before which no attempt starts.
    backoff_until: Duration,
    /// Whether the last lease preferred first attempts to retries. The next lease does the opposite, so that both kinds get their
    /// turn even if each lease has only one delivery.
    preferred_first_attempts: bool,
    /// Time of the last change of the target that the queue has processed.
    updated_at: Option<Timestamp>,
    /// Whether the target may be marked as failing in the database.
    marked_failing: bool,
}

/// The result of a completed attempt, from which the queue of its target decides how to go on.
#[derive(Debug, Clone, Copy)]
pub struct AttemptSummary {
    /// Start of the attempt, since boot.
    pub started_at: Duration,
    /// End of the attempt, since boot.
    pub ended_at: Duration,
    /// Why the attempt failed; `None` after success.
    pub failure: Option<AttemptFailure>,
    pub retry_after: Option<Duration>,
    /// A random number that varies the backoff.
    pub jitter: u32,
}

impl TargetQueue {
    /// The queue of a target without previous attempts.
    pub const fn new() -> Self {
        Self {
            concurrency: 1,
            in_flight: 0,
            unsent: VecDeque::new(),
            failures: 0,
            failed_at: Duration::ZERO,
            backoff_until: Duration::ZERO,
            preferred_first_attempts: false,
            updated_at: None,
            marked_failing: false,
        }
    }

    /// If the target has changed since the last call, resets concurrency and backoff, because its URL may be new, and returns true.
    pub fn reset_if_updated(&mut self, updated_at: Timestamp) -> bool {
        let is_updated = self.updated_at.replace(updated_at).is_some_and(|before| before != updated_at);
        if is_updated {
            (self.concurrency, self.failures, self.backoff_until) = (1, 0, Duration::ZERO);
        }
        is_updated
    }

    /// Records that the target is marked as failing in the database.
    pub const fn mark_failing(&mut self) {
        self.marked_failing = true;
    }

    /// Number of further deliveries to lease.
    pub fn lease_demand(&self, now: Duration) -> usize {
        if now < self.backoff_until { 0 } else { (self.concurrency * LEASES_PER_ATTEMPT).saturating_sub(self.leased()) }
    }

    /// Returns whether the next lease prefers first attempts to retries. Each call returns the opposite of the last one.
    pub const fn prefer_first_attempts(&mut self) -> bool {
        self.preferred_first_attempts = !self.preferred_first_attempts;
        self.preferred_first_attempts
    }

    pub fn push(&mut self, deliveries: Vec<LeasedDelivery>) {
        self.unsent.extend(deliveries);
    }

    /// Whether an attempt may start: not during backoff, and not at the concurrency limit.
    pub fn can_start(&self, now: Duration) -> bool {
        now >= self.backoff_until && self.in_flight < self.concurrency && self.has_unsent()
    }

    /// Removes the next delivery and counts its attempt as in flight.
    pub fn start_next(&mut self) -> Option<LeasedDelivery> {
        let next = self.unsent.pop_front()?;
        self.in_flight += 1;
        Some(next)
    }

    /// Takes back the count of [`Self::start_next`], because the delivery could not be sent.
    pub const fn cancel_start(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    /// Adapts concurrency and backoff after an attempt. Returns whether the database may already mark the target as failing.
    pub fn record(&mut self, attempt: &AttemptSummary, max_concurrency: usize) -> bool {
        let AttemptSummary { started_at, ended_at, failure, retry_after, jitter } = *attempt;
        self.in_flight = self.in_flight.saturating_sub(1);
        if failure.is_none() {
            self.failures = 0;
            self.concurrency = (self.concurrency + 1).min(max_concurrency);
        } else {
            // An attempt that began before the last failed attempt ended ran beside it, so both count as one failure.
            if started_at >= self.failed_at {
                self.failures = self.failures.saturating_add(1);
                self.failed_at = ended_at;
            }
            self.concurrency = (self.concurrency / 2).max(1);
            let backoff = target_backoff(self.failures, retry_after, jitter);
            self.backoff_until = self.backoff_until.max(ended_at.saturating_add(backoff));
        }
        std::mem::replace(&mut self.marked_failing, failure.is_some())
    }

    /// End of the current backoff, if there is one.
    pub fn backoff_until(&self, now: Duration) -> Option<Duration> {
        (now < self.backoff_until).then_some(self.backoff_until)
    }

    /// Whether there are leased deliveries without a current attempt.
    pub fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Number of leased deliveries, in flight or not.
    pub fn leased(&self) -> usize {
        self.unsent.len() + self.in_flight
    }

    /// Whether the queue has no leased deliveries and no backoff, so that it can be dropped.
    pub fn is_idle(&self, now: Duration) -> bool {
        self.leased() == 0 && self.backoff_until <= now
    }

    pub const fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Removes the leased deliveries without a current attempt.
    pub fn drain_unsent(&mut self) -> impl Iterator<Item = LeasedDelivery> + '_ {
        self.unsent.drain(..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_identity::{EventId, WebhookId};

    const START: Duration = Duration::from_secs(100);

    fn deliveries(count: usize) -> Vec<LeasedDelivery> {
        let delivery = LeasedDelivery {
            target: WebhookId::from_bits(1),
            event: EventId::from_bits(1),
            attempts: 0,
            is_test: false,
            leased_until: Timestamp::from_seconds(1),
            body: String::new(),
        };
        vec![delivery; count]
    }

    fn record_success(queue: &mut TargetQueue) {
        let failure = None;
        queue.record(&AttemptSummary { started_at: START, ended_at: START, failure, retry_after: None, jitter: 0 }, 8);
    }

    fn record_failure(
        queue: &mut TargetQueue,
        started_at: Duration,
        ended_at: Duration,
        retry_after: Option<Duration>,
        jitter: u32,
    ) {
        let failure = Some(AttemptFailure::Status);
        queue.record(&AttemptSummary { started_at, ended_at, failure, retry_after, jitter }, 8);
    }

    fn try_start(queue: &mut TargetQueue, now: Duration) -> Option<LeasedDelivery> {
        queue.can_start(now).then(|| queue.start_next().unwrap())
    }

    fn start_all(queue: &mut TargetQueue) -> usize {
        std::iter::from_fn(|| try_start(queue, START)).count()
    }

    #[test]
    fn concurrency_grows_by_one_after_success_and_halves_after_failure() {
        let mut queue = TargetQueue::new();
        assert_eq!(queue.lease_demand(START), 2);
        queue.push(deliveries(100));
        for concurrency in [1, 2, 4, 8, 8] {
            let started = start_all(&mut queue);
            assert_eq!((started, queue.in_flight()), (concurrency, concurrency));
            (0..concurrency).for_each(|_| record_success(&mut queue));
        }
        assert!(try_start(&mut queue, START).is_some());
        record_failure(&mut queue, START, START, None, 0);
        assert_eq!(start_all(&mut queue), 4);
    }

    #[test]
    fn backs_off_after_three_consecutive_failures() {
        let mut queue = TargetQueue::new();
        queue.push(deliveries(100));
        for _ in 0..3 {
            assert!(try_start(&mut queue, START).is_some());
            record_failure(&mut queue, START, START, None, u32::MAX);
        }
        assert!(try_start(&mut queue, START).is_none() && queue.lease_demand(START) == 0);
        let later = queue.backoff_until(START).unwrap();
        assert!(
            try_start(&mut queue, later).is_some() && try_start(&mut queue, later).is_none(),
            "there must be only one attempt at a time"
        );
        record_success(&mut queue);
    }

    #[test]
    fn concurrent_failures_count_as_one() {
        let mut queue = TargetQueue::new();
        let (started, ended) = (START, START + Duration::from_millis(20));
        record_failure(&mut queue, started, ended, None, 0);
        for _ in 0..15 {
            record_failure(&mut queue, started, ended + Duration::from_millis(1), None, 0);
        }
        assert_eq!(queue.backoff_until(ended + Duration::from_millis(1)), None);
        for number in [1, 2] {
            let later = ended + Duration::from_millis(100 * number);
            record_failure(&mut queue, later, later, None, u32::MAX / 2);
        }
        let backoff = queue.backoff_until(ended).unwrap().saturating_sub(ended).as_secs_f64();
        assert!((1.1..1.3).contains(&backoff), "{backoff}");
    }

    #[test]
    fn changed_target_is_attempted_without_backoff() {
        let mut queue = TargetQueue::new();
        assert!(!queue.reset_if_updated(Timestamp::from_seconds(1)));
        assert!(!queue.reset_if_updated(Timestamp::from_seconds(1)));
        queue.push(deliveries(2));
        try_start(&mut queue, START).unwrap();
        record_failure(&mut queue, START, START, Some(Duration::from_secs(30)), 0);
        assert!(try_start(&mut queue, START).is_none() && queue.reset_if_updated(Timestamp::from_seconds(2)));
        assert!(try_start(&mut queue, START).is_some());
    }

    #[test]
    fn retry_after_starts_backoff_at_first_failure() {
        let mut queue = TargetQueue::new();
        queue.push(deliveries(2));
        try_start(&mut queue, START).unwrap();
        record_failure(&mut queue, START, START, Some(Duration::from_secs(30)), 0);
        assert_eq!(queue.backoff_until(START), Some(START + Duration::from_secs(30)));
        assert!(!queue.is_idle(START) && try_start(&mut queue, START + Duration::from_secs(30)).is_some());
    }
}
