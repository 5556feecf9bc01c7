use super::*;
use crate::domain::{agent::Owner, webhook::url::TargetUrl};
use countersign_identity::{EventId, Timestamp};

const NOW: Duration = Duration::from_secs(100);
const LIMITS: ConcurrencyLimits = ConcurrencyLimits { total: 12, per_target: 4 };

fn person(name: &str) -> TargetOwner {
    TargetOwner::Person(Owner { issuer: "issuer".to_owned(), subject: name.to_owned() })
}

/// The target `number`.
fn due(number: u128, owner: TargetOwner) -> DueTarget {
    DueTarget {
        id: WebhookId::from_bits(number),
        url: TargetUrl::parse("https://receiver.example/").unwrap(),
        updated_at: Timestamp::from_seconds(1),
        failing_since: None,
        owner,
    }
}

fn targets(numbers: std::ops::Range<u128>, owner: &TargetOwner) -> Vec<DueTarget> {
    numbers.map(|number| due(number, owner.clone())).collect()
}

fn failing(mut due: Vec<DueTarget>) -> Vec<DueTarget> {
    for due in &mut due {
        due.failing_since = Some(Timestamp::from_seconds(1));
    }
    due
}

/// Leases deliveries as planned, starts attempts as the dispatcher does, and returns the numbers of the targets with a new
/// attempt. All targets have as many due deliveries as are leased.
struct Dispatch {
    scheduler: Scheduler,
    in_flight: Vec<LeasedDelivery>,
}

impl Dispatch {
    fn new() -> Self {
        Self { scheduler: Scheduler::new(LIMITS), in_flight: Vec::new() }
    }

    fn iterate(&mut self, targets: Vec<DueTarget>, tests: Vec<DueTarget>) -> Vec<u128> {
        self.iterate_page(targets, tests, None)
    }

    /// As [`Self::iterate`], with the targets of a page.
    fn iterate_page(&mut self, targets: Vec<DueTarget>, tests: Vec<DueTarget>, next: Option<WebhookId>) -> Vec<u128> {
        let all: Vec<_> = [targets.clone(), tests.clone()].concat();
        let owner_of = |id| all.iter().find(|due| due.id == id).unwrap().owner.clone();
        let test_ids: Vec<_> = tests.iter().map(|due| due.id).collect();
        let plan = self.scheduler.plan_leases(DueWork { targets, next, tests, updated_at: Vec::new() }, NOW);
        for request in plan.requests {
            let (target, count) = request.target_and_count();
            let delivery = LeasedDelivery {
                target,
                event: EventId::from_bits(1),
                attempts: 0,
                is_test: test_ids.contains(&target),
                leased_until: Timestamp::from_seconds(1),
                body: String::new(),
            };
            self.scheduler.push((target, owner_of(target)), vec![delivery; usize::try_from(count).unwrap()]);
        }
        let mut started = Vec::new();
        self.scheduler.start_attempts(NOW, LIMITS.total - self.in_flight.len(), |delivery| {
            started.push(delivery);
            Ok(())
        });
        self.in_flight.extend(started.iter().cloned());
        started.iter().map(|delivery| delivery.target.bits()).collect()
    }

    /// Ends all attempts with success.
    fn complete_all(&mut self) {
        while !self.in_flight.is_empty() {
            self.complete_oldest();
        }
    }

    /// Ends the oldest attempt with success.
    fn complete_oldest(&mut self) {
        let delivery = self.in_flight.remove(0);
        let attempt = AttemptSummary { started_at: NOW, ended_at: NOW, failure: None, retry_after: None, jitter: 0 };
        self.scheduler.record(&delivery, &attempt);
    }
}

#[test]
fn targets_of_other_pages_keep_their_concurrency() {
    let mut dispatch = Dispatch::new();
    let (first, second) = (targets(1..2, &person("one")), targets(2..3, &person("two")));
    let next = Some(WebhookId::from_bits(1));
    dispatch.iterate_page(first.clone(), Vec::new(), next);
    for _ in 0..3 {
        dispatch.complete_all();
        dispatch.iterate_page(Vec::new(), Vec::new(), next);
    }
    dispatch.iterate_page(second, Vec::new(), None);
    dispatch.complete_all();
    let started = dispatch.iterate_page(first, Vec::new(), next);
    assert!(started.iter().filter(|target| **target == 1).count() > 1, "{started:?}");
    // The queue of a target that is due in no page of a pass is dropped.
    for _ in 0..5 {
        dispatch.complete_all();
        dispatch.iterate_page(Vec::new(), Vec::new(), None);
    }
    assert!(dispatch.scheduler.queues.is_empty());
}

#[test]
fn owner_with_many_targets_leaves_the_share_of_another_owner_free() {
    let mut dispatch = Dispatch::new();
    let many = targets(1..50, &person("many"));
    assert_eq!(dispatch.iterate(many.clone(), Vec::new()).len(), 6, "half of the slots, although nobody else waits");
    assert_eq!(dispatch.iterate(many.clone(), Vec::new()), [0_u128; 0]);
    let both = || [many.clone(), targets(100..101, &person("one"))].concat();
    assert_eq!(dispatch.iterate(both(), Vec::new()), [100], "no attempt had to end");
    // Each of two owners has a third of the slots: the first owner gets no slot until it uses fewer than four.
    for _ in 0..2 {
        dispatch.complete_oldest();
        assert_eq!(dispatch.iterate(both(), Vec::new()), [0_u128; 0]);
    }
    dispatch.complete_oldest();
    let started = dispatch.iterate(both(), Vec::new());
    assert!(started.len() == 1 && started[0] < 50, "{started:?}");
}

#[test]
fn targets_of_the_deployment_have_the_share_of_one_owner() {
    let mut dispatch = Dispatch::new();
    let due = [targets(1..50, &TargetOwner::Deployment), targets(100..150, &person("person"))].concat();
    let started = dispatch.iterate(due, Vec::new());
    let of_person = started.iter().filter(|target| **target >= 100).count();
    assert_eq!((started.len(), of_person), (8, 4));
}

#[test]
fn services_of_one_person_share_while_a_service_of_another_person_has_its_own_share() {
    let mut dispatch = Dispatch::new();
    let due = [targets(1..4, &person("a")), targets(10..12, &person("b")), targets(20..21, &person("c"))].concat();
    let mut started = dispatch.iterate(due, Vec::new());
    started.sort_unstable();
    assert_eq!(started, [1, 2, 3, 10, 11, 20]);
}

#[test]
fn failing_targets_get_half_of_the_share_of_their_owner() {
    let mut dispatch = Dispatch::new();
    let due = || [failing(targets(1..50, &person("many"))), targets(100..150, &person("many"))].concat();
    let started = dispatch.iterate(due(), Vec::new());
    let healthy = started.iter().filter(|target| **target >= 100).count();
    assert_eq!((started.len(), healthy), (6, 3));
}

#[test]
fn failing_targets_of_one_owner_leave_slots_for_failing_targets_of_another() {
    let mut dispatch = Dispatch::new();
    let many = failing(targets(1..50, &person("many")));
    assert_eq!(dispatch.iterate(many.clone(), Vec::new()).len(), 3);
    let both = [many, failing(targets(100..101, &person("one")))].concat();
    assert_eq!(dispatch.iterate(both, Vec::new()), [100]);
}

#[test]
fn every_owner_gets_a_slot_in_turn_if_there_are_more_owners_than_slots() {
    let mut dispatch = Dispatch::new();
    let due =
        || (0..30).flat_map(|number| targets(number * 10..number * 10 + 5, &person(&number.to_string()))).collect();
    let mut owners: Vec<_> = dispatch.iterate(due(), Vec::new()).into_iter().map(|target| target / 10).collect();
    for _ in 0..18 {
        dispatch.complete_oldest();
        owners.extend(dispatch.iterate(due(), Vec::new()).into_iter().map(|target| target / 10));
    }
    owners.sort_unstable();
    owners.dedup();
    assert_eq!(owners.len(), 30, "{owners:?}");
}

#[test]
fn test_events_of_one_owner_leave_slots_for_those_of_another() {
    let mut dispatch =
        Dispatch { scheduler: Scheduler::new(ConcurrencyLimits { total: 32, per_target: 4 }), in_flight: Vec::new() };
    let many = targets(1..50, &person("many"));
    assert_eq!(dispatch.iterate(Vec::new(), many.clone()).len(), 2, "half of the slots for test events");
    let both = [many, targets(100..101, &person("one"))].concat();
    assert_eq!(dispatch.iterate(Vec::new(), both), [100]);
}
