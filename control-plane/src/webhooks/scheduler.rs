//! Divides the concurrent attempts among the targets: decides which deliveries to lease, and which to send next.
//!
//! Every target with due deliveries gets at least one attempt, and at most an equal share while other targets wait. Failing
//! targets together get at most half of all attempts, and test deliveries at most one eighth.

use super::{
    delivery_queue::{DueWork, LeaseRequest},
    target_queue::{AttemptSummary, LEASES_PER_SLOT, TargetQueue},
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

/// All test deliveries together may use the total number of concurrent attempts divided by `TEST_SHARE_DIVISOR`. Each target
/// has at most one test delivery.
const TEST_SHARE_DIVISOR: usize = 8;

/// Maximum numbers of concurrent attempts.
#[derive(Debug, Clone, Copy)]
pub struct ConcurrencyLimits {
    /// Attempts to all targets together.
    pub total: usize,
    /// Attempts to one target.
    pub per_target: usize,
}

/// Leased deliveries of all targets, in flight or not.
pub(super) struct Scheduler {
    limits: ConcurrencyLimits,
    queues: HashMap<WebhookId, TargetQueue>,
    /// Leased test deliveries that are not sent yet.
    unsent_tests: VecDeque<LeasedDelivery>,
    /// Targets with a leased test delivery, in flight or not.
    tested_targets: HashSet<WebhookId>,
}

/// The work for the next transaction.
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

    /// Whether a target has leased deliveries or is backing off.
    pub(super) fn has_target(&self, target: WebhookId) -> bool {
        self.queues.contains_key(&target) || self.tested_targets.contains(&target)
    }

    /// Plans which deliveries to lease for the targets with due work.
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
        let targets_to_test = tests.into_iter().filter(|target| !self.tested_targets.contains(&target.id));
        requests.extend(targets_to_test.take(self.max_tests()).map(LeaseRequest::for_test));
        LeasePlan { requests, released }
    }

    /// Plans the leases of ordinary deliveries. Targets with the fewest leases come first, and no target gets more than its
    /// equal share.
    fn plan_targets(&mut self, targets: Vec<WebhookTarget>, now: Duration) -> Vec<LeaseRequest> {
        for target in &targets {
            let queue = self.queues.entry(target.id).or_insert_with(TargetQueue::new);
            if target.failing_since.is_some() {
                queue.mark_failing();
            }
            queue.reset_if_updated(target.updated_at);
        }
        let active = self.queues.values().filter(|queue| queue.backoff_until(now).is_none()).count();
        let share = self.equal_share(active);
        let leased = |target: &WebhookTarget| self.queues.get(&target.id).map_or(0, TargetQueue::leased);
        let mut targets: Vec<_> = targets.into_iter().map(|target| (leased(&target), target)).collect();
        targets.sort_by_key(|(leased, _)| *leased);
        let mut requests = Vec::new();
        for (leased, target) in targets {
            let Some(queue) = self.queues.get_mut(&target.id) else { continue };
            let count = queue.lease_demand(now).min((share * LEASES_PER_SLOT).saturating_sub(leased));
            if count > 0 && requests.len() < self.limits.total {
                requests.push(LeaseRequest::for_deliveries(target, count, queue.prefer_first_attempts()));
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

    /// Starts as many attempts as the limits allow, first for the targets with the fewest attempts in flight. `send` returns
    /// the delivery if it cannot be sent.
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
            free_slots -= self.start_attempt(test, &mut send);
        }
        let failing_in_flight: usize =
            self.queues.values().filter(|queue| queue.is_failing()).map(TargetQueue::in_flight).sum();
        let mut failing_slots = (self.limits.total / 2).saturating_sub(failing_in_flight);
        let share = self.equal_share(self.queues.values().filter(|queue| queue.leased() > 0).count());
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
                free_slots -= self.start_attempt(delivery, &mut send);
            }
        }
    }

    /// Starts an attempt. Returns the number of started attempts: one, or zero if the delivery cannot be sent.
    fn start_attempt(
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

    /// Updates the queue of a target after an attempt. Returns whether the target may have been marked as failing in the
    /// database before, and the deliveries to release because of a backoff or a response with status 410.
    pub(super) fn record(
        &mut self,
        delivery: &LeasedDelivery,
        attempt: &AttemptSummary,
    ) -> (bool, Vec<LeasedDelivery>) {
        if delivery.is_test {
            self.tested_targets.remove(&delivery.target);
            return (false, Vec::new());
        }
        let Some(queue) = self.queues.get_mut(&delivery.target) else { return (false, Vec::new()) };
        let was_failing = queue.record(attempt, self.limits.per_target);
        let must_release =
            attempt.failure == Some(AttemptFailure::Gone) || queue.backoff_until(attempt.ended_at).is_some();
        (was_failing, if must_release { queue.drain_unsent().collect() } else { Vec::new() })
    }

    /// The earliest end of a backoff.
    pub(super) fn next_backoff_end(&self, now: Duration) -> Option<Duration> {
        self.queues.values().filter_map(|queue| queue.backoff_until(now)).min()
    }

    /// Removes all deliveries that are not sent yet.
    pub(super) fn drain_unsent(&mut self) -> impl Iterator<Item = LeasedDelivery> + '_ {
        self.queues.values_mut().flat_map(TargetQueue::drain_unsent).chain(self.unsent_tests.drain(..))
    }

    /// The share of one target in all attempts, if all targets have equal shares; at least one.
    fn equal_share(&self, targets: usize) -> usize {
        (self.limits.total / targets.max(1)).max(1)
    }

    /// Maximum number of test deliveries in flight.
    fn max_tests(&self) -> usize {
        (self.limits.total / TEST_SHARE_DIVISOR).max(1)
    }
}
