//! Decides which deliveries to lease, and which to send next.
//!
//! Each attempt needs a place, and the number of places is limited. An owner gets at most a part of the places, however many
//! targets it has. A free place goes to the owner with the fewest attempts. Among owners with equally few attempts, it goes to the
//! owner that has waited longest, and there to the target that has waited longest.

use super::{
    delivery_queue::{DueWork, LeaseRequest},
    target_queue::{AttemptSummary, LEASES_PER_ATTEMPT, TargetQueue},
};
use crate::{
    domain::webhook::{DueTarget, TargetOwner, delivery::AttemptFailure},
    store::deliveries::LeasedDelivery,
};
use countersign_identity::WebhookId;
use countersign_process::{Place, Places};
use std::{
    collections::{HashMap, HashSet, VecDeque},
    time::Duration,
};

/// Maximum numbers of concurrent attempts.
#[derive(Debug, Clone, Copy)]
pub struct ConcurrencyLimits {
    pub total: usize,
    pub per_owner: usize,
    pub per_target: usize,
}

/// An owner may have a quarter of all attempts, and each target a quarter of the attempts of its owner. So a slow receiver does not
/// delay the other targets of its owner.
const DIVISOR: usize = 4;

/// Maximum number of concurrent attempts to one target. More of them would only queue at the receiver.
const MAX_PER_TARGET: usize = 16;

impl ConcurrencyLimits {
    /// The limits per owner and per target that follow from a total number of concurrent attempts.
    pub fn of_total(total: usize) -> Self {
        let per_owner = (total / DIVISOR).max(1);
        Self { total, per_owner, per_target: (per_owner / DIVISOR).clamp(1, MAX_PER_TARGET) }
    }
}

/// The leased deliveries of all targets, in flight or not.
pub(super) struct Scheduler {
    limits: ConcurrencyLimits,
    attempts: Places<TargetOwner>,
    queues: HashMap<WebhookId, OwnedQueue>,
    /// The number of the attempt that was started last.
    started: u64,
    /// The dispatcher lists the targets with due deliveries in pages. One pass lists all of them. These targets were on the pages
    /// of the current pass: when it ends, idle queues of other targets are dropped.
    due_in_pass: HashSet<WebhookId>,
    /// Leased test deliveries that are not sent yet.
    unsent_tests: VecDeque<LeasedDelivery>,
    /// Targets with a leased test delivery, in flight or not.
    tested_targets: HashMap<WebhookId, TargetOwner>,
}

struct OwnedQueue {
    owner: TargetOwner,
    queue: TargetQueue,
    /// Number of the last attempt that was started; zero if none was.
    last_started: u64,
}

impl OwnedQueue {
    const fn new(owner: TargetOwner) -> Self {
        Self { owner, queue: TargetQueue::new(), last_started: 0 }
    }
}

/// The leased deliveries and running attempts of all targets of an owner together.
#[derive(Default)]
struct OwnerUse {
    leased: usize,
    in_flight: usize,
    /// Number of the last attempt that was started; zero if none was.
    last_started: u64,
}

pub(super) struct LeasePlan {
    pub requests: Vec<LeaseRequest>,
    /// Leased deliveries that are not sent now, because their target has changed or is not active.
    pub released: Vec<LeasedDelivery>,
}

/// What follows from the result of an attempt.
#[derive(Default)]
pub(super) struct RecordedAttempt {
    /// Whether the target may be marked as failing in the database, so that a success must remove the mark.
    pub was_failing: bool,
    /// Deliveries to release, because the target backs off or has answered 410.
    pub released: Vec<LeasedDelivery>,
}

impl Scheduler {
    pub(super) fn new(limits: ConcurrencyLimits) -> Self {
        Self {
            limits,
            attempts: Places::new(limits.total, limits.per_owner),
            queues: HashMap::new(),
            started: 0,
            due_in_pass: HashSet::new(),
            unsent_tests: VecDeque::new(),
            tested_targets: HashMap::new(),
        }
    }

    /// Targets with leased deliveries that are not sent yet.
    pub(super) fn targets_with_unsent(&self) -> Vec<WebhookId> {
        self.queues.iter().filter(|(_, owned)| owned.queue.has_unsent()).map(|(target, _)| *target).collect()
    }

    /// Whether a target has a queue, or a leased test delivery.
    pub(super) fn has_target(&self, target: WebhookId) -> bool {
        self.queues.contains_key(&target) || self.tested_targets.contains_key(&target)
    }

    /// Plans which deliveries to lease for the targets with due work.
    pub(super) fn plan_leases(&mut self, work: DueWork, now: Duration) -> LeasePlan {
        let DueWork { targets, next, tests, waiting_targets } = work;
        let mut released = Vec::new();
        for (target, changed_at) in waiting_targets {
            let Some(OwnedQueue { queue, .. }) = self.queues.get_mut(&target) else { continue };
            // `None`: the target is no longer active. If it has changed, these deliveries must not be sent to its old URL.
            if changed_at.is_none_or(|changed_at| queue.reset_if_updated(changed_at)) {
                released.extend(queue.drain_unsent());
            }
        }
        self.due_in_pass.extend(targets.iter().map(|due| due.id));
        if next.is_none() {
            // The pass is over. An idle target without due deliveries needs no queue.
            let due = std::mem::take(&mut self.due_in_pass);
            self.queues.retain(|target, owned| !owned.queue.is_idle(now) || due.contains(target));
        }
        LeasePlan { requests: self.plan_requests(targets, tests, now), released }
    }

    /// Plans leases. An owner gets at most [`LEASES_PER_ATTEMPT`] leased deliveries for each of its places. One transaction leases
    /// for at most `limits.total` targets.
    fn plan_requests(&mut self, mut due: Vec<DueTarget>, tests: Vec<DueTarget>, now: Duration) -> Vec<LeaseRequest> {
        for DueTarget { id, url: _, updated_at, failing_since, owner } in &due {
            let owned = self.queues.entry(*id).or_insert_with(|| OwnedQueue::new(owner.clone()));
            owned.owner.clone_from(owner);
            if failing_since.is_some() {
                owned.queue.mark_failing();
            }
            owned.queue.reset_if_updated(*updated_at);
        }
        let mut owners = self.owners();
        for owner in self.tested_targets.values() {
            owners.entry(owner.clone()).or_default().leased += 1;
        }
        let max_leased = self.limits.per_owner * LEASES_PER_ATTEMPT;
        let mut requests = Vec::new();
        for test in tests.into_iter().filter(|test| !self.tested_targets.contains_key(&test.id)) {
            let OwnerUse { leased, .. } = owners.entry(test.owner.clone()).or_default();
            if *leased < max_leased && requests.len() < self.limits.total {
                *leased += 1;
                requests.push(LeaseRequest::for_test(test));
            }
        }
        // Fewest leased deliveries first; then the target that has waited longest; then the owner with the fewest of them.
        due.sort_by_key(|due| {
            let target_use = self.queues.get(&due.id).map(|owned| (owned.queue.leased(), owned.last_started));
            (target_use, owners.get(&due.owner).map(|owner| owner.leased))
        });
        for due in due {
            let Some(OwnedQueue { queue, .. }) = self.queues.get_mut(&due.id) else { continue };
            let OwnerUse { leased, .. } = owners.entry(due.owner.clone()).or_default();
            let count = queue.lease_demand(now).min(max_leased.saturating_sub(*leased));
            if count > 0 && requests.len() < self.limits.total {
                *leased += count;
                requests.push(LeaseRequest::for_deliveries(due, count, queue.prefer_first_attempts()));
            }
        }
        requests
    }

    /// Without test deliveries, which have no queue.
    fn owners(&self) -> HashMap<TargetOwner, OwnerUse> {
        let mut owners: HashMap<_, OwnerUse> = HashMap::new();
        for OwnedQueue { owner, queue, last_started } in self.queues.values() {
            let owner = owners.entry(owner.clone()).or_default();
            owner.leased += queue.leased();
            owner.in_flight += queue.in_flight();
            owner.last_started = owner.last_started.max(*last_started);
        }
        owners
    }

    /// Adds deliveries that were leased for a target.
    pub(super) fn push(&mut self, target: WebhookId, owner: TargetOwner, leased: Vec<LeasedDelivery>) {
        let (tests, deliveries): (Vec<_>, Vec<_>) = leased.into_iter().partition(|delivery| delivery.is_test);
        if !tests.is_empty() {
            self.tested_targets.insert(target, owner.clone());
            self.unsent_tests.extend(tests);
        }
        if !deliveries.is_empty() {
            self.queues.entry(target).or_insert_with(|| OwnedQueue::new(owner)).queue.push(deliveries);
        }
    }

    /// Starts an attempt for each free place. `send` returns the delivery if it cannot be sent; its lease then ends by itself.
    pub(super) fn start_attempts(
        &mut self,
        now: Duration,
        mut send: impl FnMut(LeasedDelivery, Place<TargetOwner>) -> Result<(), LeasedDelivery>,
    ) {
        for test in std::mem::take(&mut self.unsent_tests) {
            let Some(owner) = self.tested_targets.get(&test.target) else { continue };
            match self.attempts.try_enter(owner.clone()) {
                Err(_) => self.unsent_tests.push_back(test),
                Ok(place) => {
                    if let Err(unsent) = send(test, place) {
                        self.tested_targets.remove(&unsent.target);
                    }
                }
            }
        }
        let owners = self.owners();
        let mut waiting: Vec<_> = self.queues.iter_mut().filter(|(_, owned)| owned.queue.has_unsent()).collect();
        waiting.sort_by_key(|(target, owned)| {
            let owner_use = owners.get(&owned.owner).map(|owner| (owner.in_flight, owner.last_started));
            (owner_use, owned.last_started, **target)
        });
        for (_, OwnedQueue { owner, queue, last_started }) in waiting {
            while queue.can_start(now)
                && let Ok(place) = self.attempts.try_enter(owner.clone())
                && let Some(delivery) = queue.start_next()
            {
                self.started += 1;
                *last_started = self.started;
                if send(delivery, place).is_err() {
                    queue.cancel_start();
                }
            }
        }
    }

    /// Updates the queue of a target after an attempt.
    pub(super) fn record(&mut self, delivery: &LeasedDelivery, attempt: &AttemptSummary) -> RecordedAttempt {
        if delivery.is_test {
            self.tested_targets.remove(&delivery.target);
            return RecordedAttempt::default();
        }
        let Some(OwnedQueue { queue, .. }) = self.queues.get_mut(&delivery.target) else {
            return RecordedAttempt::default();
        };
        let was_failing = queue.record(attempt, self.limits.per_target);
        let must_release =
            attempt.failure == Some(AttemptFailure::Gone) || queue.backoff_until(attempt.ended_at).is_some();
        let released = if must_release { queue.drain_unsent().collect() } else { Vec::new() };
        RecordedAttempt { was_failing, released }
    }

    pub(super) fn next_backoff_end(&self, now: Duration) -> Option<Duration> {
        self.queues.values().filter_map(|owned| owned.queue.backoff_until(now)).min()
    }

    /// Removes all deliveries that are not sent yet.
    pub(super) fn drain_unsent(&mut self) -> impl Iterator<Item = LeasedDelivery> + '_ {
        let queues = self.queues.values_mut().flat_map(|owned| owned.queue.drain_unsent());
        queues.chain(self.unsent_tests.drain(..))
    }
}

#[cfg(test)]
mod tests;
