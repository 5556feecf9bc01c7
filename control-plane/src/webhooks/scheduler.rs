//! Divides the concurrent attempts among the owners and their targets: decides which deliveries to lease, and which to send
//! next.
//!
//! Owners have equal shares (`owner_shares`), and the targets of an owner have equal parts of the share. Failing targets
//! together get at most half of all attempts, and test deliveries at most one eighth.

use super::{
    delivery_queue::{DueWork, LeaseRequest},
    owner_shares::{OwnerShares, OwnerTurns},
    target_queue::{AttemptSummary, LEASES_PER_SLOT, TargetQueue},
};
use crate::{
    domain::webhook::{DueTarget, TargetOwner, delivery::AttemptFailure},
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

/// Attempts to one target. More would only queue at the receiver.
const TARGET_CONCURRENCY: usize = 16;

impl ConcurrencyLimits {
    /// The limits for so many attempts in total.
    pub fn of_total(total: usize) -> Self {
        Self { total, per_target: total.min(TARGET_CONCURRENCY) }
    }
}

/// Leased deliveries of all targets, in flight or not.
pub(super) struct Scheduler {
    limits: ConcurrencyLimits,
    queues: HashMap<WebhookId, OwnedQueue>,
    turns: OwnerTurns,
    /// Targets that had due deliveries in the pages that were read since the last complete pass over all targets.
    due_in_pass: HashSet<WebhookId>,
    /// Leased test deliveries that are not sent yet.
    unsent_tests: VecDeque<LeasedDelivery>,
    /// Targets with a leased test delivery, in flight or not.
    tested_targets: HashMap<WebhookId, TargetOwner>,
}

/// The queue of a target, and the owner whose share the target uses.
struct OwnedQueue {
    owner: TargetOwner,
    queue: TargetQueue,
    /// Number of the turn in which the last attempt started; zero if none started.
    last_turn: u64,
}

impl OwnedQueue {
    const fn new(owner: TargetOwner) -> Self {
        Self { owner, queue: TargetQueue::new(), last_turn: 0 }
    }
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
        Self {
            limits,
            queues: HashMap::new(),
            turns: OwnerTurns::default(),
            due_in_pass: HashSet::new(),
            unsent_tests: VecDeque::new(),
            tested_targets: HashMap::new(),
        }
    }

    /// Targets with leased deliveries that are not sent yet.
    pub(super) fn targets_with_unsent(&self) -> Vec<WebhookId> {
        self.queues.iter().filter(|(_, owned)| owned.queue.has_unsent()).map(|(target, _)| *target).collect()
    }

    /// Whether a target has leased deliveries or is backing off.
    pub(super) fn has_target(&self, target: WebhookId) -> bool {
        self.queues.contains_key(&target) || self.tested_targets.contains_key(&target)
    }

    /// Plans which deliveries to lease for the targets with due work.
    pub(super) fn plan_leases(&mut self, work: DueWork, now: Duration) -> LeasePlan {
        let DueWork { targets, next, tests, updated_at } = work;
        let mut released = Vec::new();
        for (target, updated_at) in updated_at {
            let Some(OwnedQueue { queue, .. }) = self.queues.get_mut(&target) else { continue };
            if updated_at.is_none_or(|updated_at| queue.reset_if_updated(updated_at)) {
                released.extend(queue.drain_unsent());
            }
        }
        self.due_in_pass.extend(targets.iter().map(|due| due.id));
        if next.is_none() {
            let due = std::mem::take(&mut self.due_in_pass);
            self.queues.retain(|target, owned| !owned.queue.is_idle(now) || due.contains(target));
        }
        let mut requests = self.plan_targets(targets, now);
        requests.extend(self.plan_tests(tests));
        LeasePlan { requests, released }
    }

    /// Plans the leases of ordinary deliveries. Owners take turns, and of an owner, targets with the fewest leases come first.
    fn plan_targets(&mut self, due: Vec<DueTarget>, now: Duration) -> Vec<LeaseRequest> {
        for DueTarget { id, url: _, updated_at, failing_since, owner } in &due {
            let owned = self.queues.entry(*id).or_insert_with(|| OwnedQueue::new(owner.clone()));
            owned.owner.clone_from(owner);
            if failing_since.is_some() {
                owned.queue.mark_failing();
            }
            owned.queue.reset_if_updated(*updated_at);
        }
        self.turns.set_owners(self.queues.values().map(|owned| &owned.owner));
        let mut shares = OwnerShares::default();
        for OwnedQueue { owner, queue, .. } in self.queues.values() {
            if queue.backoff_until(now).is_none() {
                shares.add_target(owner, queue.leased(), queue.is_failing());
            }
        }
        let leased = |due: &DueTarget| self.queues.get(&due.id).map_or(0, |owned| owned.queue.leased());
        let mut due: Vec<_> = due.into_iter().map(|due| (leased(&due), due)).collect();
        due.sort_by_key(|(leased, _)| *leased);
        let mut requests = Vec::new();
        for (leased, due) in self.turns.sort(due, &shares, |(_, due)| &due.owner) {
            let Some(OwnedQueue { queue, .. }) = self.queues.get_mut(&due.id) else { continue };
            let total = self.limits.total * LEASES_PER_SLOT;
            let available = shares.available(total, &due.owner, (leased, queue.is_failing()));
            let count = queue.lease_demand(now).min(available);
            if count > 0 && requests.len() < self.limits.total {
                shares.take(&due.owner, count, queue.is_failing());
                requests.push(LeaseRequest::for_deliveries(due, count, queue.prefer_first_attempts()));
            }
        }
        requests
    }

    /// Plans the leases of test deliveries. Owners take turns.
    fn plan_tests(&self, due: Vec<DueTarget>) -> Vec<LeaseRequest> {
        let due: Vec<_> = due.into_iter().filter(|due| !self.tested_targets.contains_key(&due.id)).collect();
        let mut shares = OwnerShares::default();
        for owner in self.tested_targets.values() {
            shares.add_target(owner, 1, false);
        }
        for due in &due {
            shares.add_target(&due.owner, 0, false);
        }
        let mut requests = Vec::new();
        for due in self.turns.sort(due, &shares, |due| &due.owner) {
            if requests.len() < self.max_tests() && shares.available(self.max_tests(), &due.owner, (0, false)) > 0 {
                shares.take(&due.owner, 1, false);
                requests.push(LeaseRequest::for_test(due));
            }
        }
        requests
    }

    /// Adds deliveries that were leased for a target.
    pub(super) fn push(&mut self, (target, owner): (WebhookId, TargetOwner), leased: Vec<LeasedDelivery>) {
        let (tests, deliveries): (Vec<_>, Vec<_>) = leased.into_iter().partition(|delivery| delivery.is_test);
        if !tests.is_empty() {
            self.tested_targets.insert(target, owner.clone());
            self.unsent_tests.extend(tests);
        }
        if !deliveries.is_empty() {
            self.queues.entry(target).or_insert_with(|| OwnedQueue::new(owner)).queue.push(deliveries);
        }
    }

    /// Starts as many attempts as the limits allow, first for the owners and then for the targets with the fewest attempts in
    /// flight. `send` returns the delivery if it cannot be sent.
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
        let mut shares = OwnerShares::default();
        let mut failing_slots = self.limits.total / 2;
        for OwnedQueue { owner, queue, .. } in self.queues.values().filter(|owned| owned.queue.leased() > 0) {
            shares.add_target(owner, queue.in_flight(), queue.is_failing());
            failing_slots = failing_slots.saturating_sub(if queue.is_failing() { queue.in_flight() } else { 0 });
        }
        let unsent = self.queues.iter().filter(|(_, owned)| owned.queue.has_unsent());
        let order = |(target, owned): (&WebhookId, &OwnedQueue)| {
            ((owned.queue.in_flight(), owned.last_turn, *target), owned.owner.clone())
        };
        let mut unsent: Vec<_> = unsent.map(order).collect();
        unsent.sort_unstable();
        for ((.., target), owner) in self.turns.sort(unsent, &shares, |(_, owner)| owner) {
            while free_slots > 0
                && let Some(OwnedQueue { queue, last_turn, .. }) = self.queues.get_mut(&target)
                && (failing_slots > 0 || !queue.is_failing())
                && shares.available(self.limits.total, &owner, (queue.in_flight(), queue.is_failing())) > 0
                && let Some(delivery) = queue.start_next(now)
            {
                let is_failing = queue.is_failing();
                *last_turn = self.turns.record_start(&owner);
                let started = self.start_attempt(delivery, &mut send);
                failing_slots -= if is_failing { started } else { 0 };
                shares.take(&owner, started, is_failing);
                free_slots -= started;
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
        } else if let Some(owned) = self.queues.get_mut(&unsent.target) {
            owned.queue.cancel_start();
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
        let Some(OwnedQueue { queue, .. }) = self.queues.get_mut(&delivery.target) else { return (false, Vec::new()) };
        let was_failing = queue.record(attempt, self.limits.per_target);
        let must_release =
            attempt.failure == Some(AttemptFailure::Gone) || queue.backoff_until(attempt.ended_at).is_some();
        (was_failing, if must_release { queue.drain_unsent().collect() } else { Vec::new() })
    }

    /// The earliest end of a backoff.
    pub(super) fn next_backoff_end(&self, now: Duration) -> Option<Duration> {
        self.queues.values().filter_map(|owned| owned.queue.backoff_until(now)).min()
    }

    /// Removes all deliveries that are not sent yet.
    pub(super) fn drain_unsent(&mut self) -> impl Iterator<Item = LeasedDelivery> + '_ {
        let queues = self.queues.values_mut().flat_map(|owned| owned.queue.drain_unsent());
        queues.chain(self.unsent_tests.drain(..))
    }

    /// Maximum number of test deliveries in flight.
    fn max_tests(&self) -> usize {
        (self.limits.total / TEST_SHARE_DIVISOR).max(1)
    }
}

#[cfg(test)]
mod tests;
