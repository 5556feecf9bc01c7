//! Divides the dispatcher's attempts among the targets: what to lease for each, and what to send next.
//!
//! Every target with due deliveries gets at least one attempt, and at most an equal share while others wait. Failing
//! targets together get half of all attempts, and tests one eighth.

use super::{
    delivery_queue::{DueWork, LeaseRequest},
    target_queue::{EndedAttempt, LEASES_PER_SLOT, TargetQueue},
};
use crate::{
    domain::webhook::{WebhookTarget, delivery::AttemptFailure},
    store::deliveries::LeasedDelivery,
};
use countersign_identity::WebhookId;
use std::{
    collections::{HashMap, HashSet, VecDeque},
    time::Duration,
};

/// The inverse of the share of attempts that tests may use together; each target has at most one test.
const TESTS_SHARE: usize = 8;

/// Maximum numbers of concurrent attempts.
#[derive(Debug, Clone, Copy)]
pub struct ConcurrencyLimits {
    /// To all targets together.
    pub total: usize,
    /// To one target.
    pub per_target: usize,
}

/// Leased deliveries of all targets, in flight or not.
pub(super) struct Scheduler {
    limits: ConcurrencyLimits,
    queues: HashMap<WebhookId, TargetQueue>,
    /// Leased tests that are not sent yet.
    unsent_tests: VecDeque<LeasedDelivery>,
    /// Targets with a leased test, in flight or not.
    tested_targets: HashSet<WebhookId>,
}

/// What the next transaction has to do.
pub(super) struct LeasePlan {
    /// Deliveries to lease.
    pub requests: Vec<LeaseRequest>,
    /// Leased deliveries that are not sent now, because their target has changed or is not active.
    pub released: Vec<LeasedDelivery>,
}

impl Scheduler {
    pub(super) fn new(limits: ConcurrencyLimits) -> Self {
        Self { limits, queues: HashMap::new(), unsent_tests: VecDeque::new(), tested_targets: HashSet::new() }
    }

    /// Targets with leased deliveries that are not sent yet.
    pub(super) fn targets_with_unsent(&self) -> Vec<WebhookId> {
        self.queues.iter().filter(|(_, queue)| queue.has_unsent()).map(|(target, _)| *target).collect()
    }

    /// Whether deliveries of this target are leased or it is backing off.
    pub(super) fn has_target(&self, target: WebhookId) -> bool {
        self.queues.contains_key(&target) || self.tested_targets.contains(&target)
    }

    /// Plans what to lease for the targets with due deliveries.
    pub(super) fn plan_leases(&mut self, work: DueWork, now: Duration) -> LeasePlan {
        let DueWork { targets, tests, updated_at } = work;
        let mut released = Vec::new();
        for (target, updated_at) in updated_at {
            let Some(queue) = self.queues.get_mut(&target) else { continue };
            if updated_at.is_none_or(|updated_at| queue.reset_if_updated(updated_at)) {
                released.extend(queue.drain_unsent());
            }
        }
        self.queues.retain(|target, queue| !queue.is_idle(now) || targets.iter().any(|due| due.id == *target));
        let mut requests = self.plan_targets(targets, now);
        let untested = tests.into_iter().filter(|target| !self.tested_targets.contains(&target.id));
        requests.extend(untested.take(self.max_tests()).map(LeaseRequest::test));
        LeasePlan { requests, released }
    }

    /// Targets with the fewest leases come first. None gets more than its share.
    fn plan_targets(&mut self, targets: Vec<WebhookTarget>, now: Duration) -> Vec<LeaseRequest> {
        for target in &targets {
            let queue = self.queues.entry(target.id).or_insert_with(TargetQueue::new);
            if target.failing_since.is_some() {
                queue.mark_failing();
            }
            queue.reset_if_updated(target.updated_at);
        }
        let active = self.queues.values().filter(|queue| queue.backoff_until(now).is_none()).count();
        let share = self.share(active);
        let leased = |target: &WebhookTarget| self.queues.get(&target.id).map_or(0, TargetQueue::leased);
        let mut targets: Vec<_> = targets.into_iter().map(|target| (leased(&target), target)).collect();
        targets.sort_by_key(|(leased, _)| *leased);
        let mut requests = Vec::new();
        for (leased, target) in targets {
            let Some(queue) = self.queues.get_mut(&target.id) else { continue };
            let count = queue.lease_demand(now).min((share * LEASES_PER_SLOT).saturating_sub(leased));
            if count > 0 && requests.len() < self.limits.total {
                requests.push(LeaseRequest::deliveries(target, count, queue.prefer_first_attempts()));
            }
        }
        requests
    }

    /// Adds deliveries that were leased for a target.
    pub(super) fn push(&mut self, target: WebhookId, leased: Vec<LeasedDelivery>) {
        let (tests, deliveries): (Vec<_>, Vec<_>) = leased.into_iter().partition(|delivery| delivery.is_test);
        self.tested_targets.extend(tests.iter().map(|test| test.target));
        self.unsent_tests.extend(tests);
        if !deliveries.is_empty() {
            self.queues.entry(target).or_insert_with(TargetQueue::new).push(deliveries);
        }
    }

    /// Starts as many attempts as the limits allow, first to the targets with the fewest in flight. `send` returns the
    /// delivery if it cannot be sent.
    pub(super) fn start_attempts(
        &mut self,
        now: Duration,
        mut free_slots: usize,
        mut send: impl FnMut(LeasedDelivery) -> Result<(), LeasedDelivery>,
    ) {
        while free_slots > 0
            && self.tested_targets.len() < self.max_tests() + self.unsent_tests.len()
            && let Some(test) = self.unsent_tests.pop_front()
        {
            free_slots -= self.start(test, &mut send);
        }
        let failing: usize = self.queues.values().filter(|queue| queue.is_failing()).map(TargetQueue::in_flight).sum();
        let mut failing_slots = (self.limits.total / 2).saturating_sub(failing);
        let share = self.share(self.queues.values().filter(|queue| queue.leased() > 0).count());
        let unsent = self.queues.iter().filter(|(_, queue)| queue.has_unsent());
        let mut unsent: Vec<_> = unsent.map(|(target, queue)| (queue.in_flight(), *target)).collect();
        unsent.sort_unstable();
        for (_, target) in unsent {
            while free_slots > 0
                && let Some(queue) = self.queues.get_mut(&target)
                && queue.in_flight() < share
                && (failing_slots > 0 || !queue.is_failing())
                && let Some(delivery) = queue.start_next(now)
            {
                failing_slots -= usize::from(queue.is_failing());
                free_slots -= self.start(delivery, &mut send);
            }
        }
    }

    /// Returns the number of slots that the attempt uses.
    fn start(
        &mut self,
        delivery: LeasedDelivery,
        send: &mut impl FnMut(LeasedDelivery) -> Result<(), LeasedDelivery>,
    ) -> usize {
        let Err(unsent) = send(delivery) else { return 1 };
        if unsent.is_test {
            self.tested_targets.remove(&unsent.target);
        } else if let Some(queue) = self.queues.get_mut(&unsent.target) {
            queue.cancel_start();
        }
        0
    }

    /// Updates the queue of a target after an attempt. Returns whether the database may have recorded the target as
    /// failing before, and deliveries that are not sent during a backoff or after 410.
    pub(super) fn record(&mut self, delivery: &LeasedDelivery, attempt: &EndedAttempt) -> (bool, Vec<LeasedDelivery>) {
        if delivery.is_test {
            self.tested_targets.remove(&delivery.target);
            return (false, Vec::new());
        }
        let Some(queue) = self.queues.get_mut(&delivery.target) else { return (false, Vec::new()) };
        let was_failing = queue.record(attempt, self.limits.per_target);
        let stop = attempt.failure == Some(AttemptFailure::Gone) || queue.backoff_until(attempt.ended_at).is_some();
        (was_failing, if stop { queue.drain_unsent().collect() } else { Vec::new() })
    }

    /// The earliest end of a backoff.
    pub(super) fn next_backoff_end(&self, now: Duration) -> Option<Duration> {
        self.queues.values().filter_map(|queue| queue.backoff_until(now)).min()
    }

    /// Removes all deliveries that are not sent yet.
    pub(super) fn drain_unsent(&mut self) -> impl Iterator<Item = LeasedDelivery> + '_ {
        self.queues.values_mut().flat_map(TargetQueue::drain_unsent).chain(self.unsent_tests.drain(..))
    }

    /// An equal share of all attempts for one of this many targets; at least one.
    fn share(&self, targets: usize) -> usize {
        (self.limits.total / targets.max(1)).max(1)
    }

    /// Maximum number of tests in flight.
    fn max_tests(&self) -> usize {
        (self.limits.total / TESTS_SHARE).max(1)
    }
}
