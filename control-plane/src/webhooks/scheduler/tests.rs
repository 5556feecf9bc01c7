use super::*;
use crate::domain::{agent::Owner, webhook::url::TargetUrl};
use countersign_identity::{EventId, Timestamp};

const NOW: Duration = Duration::from_secs(100);
const LIMITS: ConcurrencyLimits = ConcurrencyLimits { total: 12, per_owner: 4, per_target: 4 };

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

/// Leases deliveries as planned, starts attempts as the dispatcher does, and returns the numbers of the targets with a new attempt.
/// Every target always has enough due deliveries to lease.
struct Dispatch {
    scheduler: Scheduler,
    in_flight: Vec<(LeasedDelivery, Place<TargetOwner>)>,
}

impl Dispatch {
    fn new() -> Self {
        Self { scheduler: Scheduler::new(LIMITS), in_flight: Vec::new() }
    }

    fn iterate(&mut self, targets: Vec<DueTarget>, tests: Vec<DueTarget>) -> Vec<u128> {
        self.iterate_page(targets, tests, None)
    }

    /// Does the same as [`Self::iterate`] with the targets of one page.
    fn iterate_page(&mut self, targets: Vec<DueTarget>, tests: Vec<DueTarget>, next: Option<WebhookId>) -> Vec<u128> {
        let all: Vec<_> = [targets.clone(), tests.clone()].concat();
        let owner_of = |id| all.iter().find(|due| due.id == id).unwrap().owner.clone();
        let test_ids: Vec<_> = tests.iter().map(|due| due.id).collect();
        let plan = self.scheduler.plan_leases(DueWork { targets, next, tests, waiting_targets: Vec::new() }, NOW);
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
            self.scheduler.push(target, owner_of(target), vec![delivery; usize::try_from(count).unwrap()]);
        }
        let mut started = Vec::new();
        self.scheduler.start_attempts(NOW, |delivery, place| {
            started.push(delivery.target.bits());
            self.in_flight.push((delivery, place));
            Ok(())
        });
        started
    }

    /// Ends all attempts with success.
    fn complete_all(&mut self) {
        while !self.in_flight.is_empty() {
            self.complete_oldest();
        }
    }

    /// Ends the oldest attempt with success.
    fn complete_oldest(&mut self) {
        let (delivery, _place) = self.in_flight.remove(0);
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
fn owner_with_many_targets_has_a_part_of_the_attempts() {
    let mut dispatch = Dispatch::new();
    let many = targets(1..50, &person("many"));
    let tests = targets(50..60, &person("many"));
    assert_eq!(dispatch.iterate(many.clone(), tests.clone()).len(), LIMITS.per_owner, "although nobody else waits");
    assert_eq!(dispatch.iterate(many.clone(), tests.clone()), [0_u128; 0]);
    let of_deployment = targets(100..101, &TargetOwner::Deployment);
    let test_of_other = targets(200..201, &person("other"));
    let started = dispatch.iterate([many.clone(), of_deployment].concat(), [tests, test_of_other].concat());
    assert_eq!(started, [200, 100], "no attempt had to end");
    dispatch.complete_oldest();
    assert_eq!(dispatch.iterate(many, Vec::new()).len(), 1);
}

#[test]
fn every_owner_gets_a_place_in_turn_if_there_are_more_owners_than_places() {
    let mut dispatch = Dispatch::new();
    let due =
        || (0..30).flat_map(|number| targets(number * 10..number * 10 + 5, &person(&number.to_string()))).collect();
    let mut owners: Vec<_> = dispatch.iterate(due(), Vec::new()).into_iter().map(|target| target / 10).collect();
    for _ in 0..60 {
        dispatch.complete_oldest();
        owners.extend(dispatch.iterate(due(), Vec::new()).into_iter().map(|target| target / 10));
    }
    owners.sort_unstable();
    owners.dedup();
    assert_eq!(owners.len(), 30, "{owners:?}");
}

#[test]
fn targets_of_an_owner_get_attempts_in_turn() {
    let mut dispatch = Dispatch::new();
    let mut started = dispatch.iterate(targets(1..13, &person("one")), Vec::new());
    for _ in 0..16 {
        dispatch.complete_oldest();
        started.extend(dispatch.iterate(targets(1..13, &person("one")), Vec::new()));
    }
    started.sort_unstable();
    started.dedup();
    assert_eq!(started.len(), 12, "{started:?}");
}
