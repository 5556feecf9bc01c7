//! What this process knows about times without trust in wall clocks: a clock that is never ahead, and since when revisions are known.

use crate::{domain::sidecar::MAX_COMMIT_TIME, store::feed::MAX_CLOCK_SKEW};
use countersign_identity::{Revision, Timestamp};
use countersign_process::Clock;
use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

/// Revisions that become known within this time count as known at its end.
const STEP: Duration = Duration::from_secs(1);

/// How many steps are kept: more than five hours with changes in every second.
const MAX_STEPS: usize = 20_000;

/// How far a time of another machine's wall clock, or the revision of a transaction, may be before the time of this machine.
pub(super) const CLOCK_MARGIN: Duration = MAX_CLOCK_SKEW.saturating_add(MAX_COMMIT_TIME);

/// Wall-clock time that advances with the time since boot: if the wall clock jumps forward, this clock does not, and if it jumps
/// backward, this clock follows. So what it says is over is over. Times that leave the process are those of the wall clock, because
/// this clock may be behind for good.
pub(super) struct SteadyClock {
    clock: Arc<dyn Clock>,
    /// The smallest difference of wall clock and time since boot, in microseconds.
    offset: AtomicI64,
}

impl SteadyClock {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        let this = Self { clock, offset: AtomicI64::new(i64::MAX) };
        this.now();
        this
    }

    pub(super) fn now(&self) -> Timestamp {
        let since_boot = micros(self.clock.since_boot());
        let offset = self.clock.now().micros().saturating_sub(since_boot);
        let smallest = self.offset.fetch_min(offset, Ordering::SeqCst).min(offset);
        Timestamp::from_micros(since_boot.saturating_add(smallest))
    }

    /// The time of the wall clock, which revisions have as well.
    pub(super) fn wall(&self) -> Timestamp {
        self.clock.now()
    }

    /// How far this clock is behind the wall clock.
    pub(super) fn lag(&self) -> Duration {
        self.wall().duration_since(self.now())
    }

    pub(super) fn since_boot(&self) -> Duration {
        self.clock.since_boot()
    }
}

/// Since when this process knows revisions. Who reads the database later reads none below.
#[derive(Default)]
pub(super) struct KnownRevisions(Mutex<VecDeque<Step>>);

#[derive(Clone, Copy)]
struct Step {
    began_at: Duration,
    known_at: Duration,
    revision: Revision,
}

impl KnownRevisions {
    fn steps(&self) -> MutexGuard<'_, VecDeque<Step>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A revision is known now.
    pub(super) fn record(&self, revision: Revision, now: Duration) {
        let mut steps = self.steps();
        if let Some(last) = steps.back_mut().filter(|last| now.saturating_sub(last.began_at) < STEP) {
            (last.known_at, last.revision) = (now, revision);
            return;
        }
        if steps.len() >= MAX_STEPS {
            steps.pop_front();
        }
        steps.push_back(Step { began_at: now, known_at: now, revision });
    }

    /// The age of a known revision, or a smaller one.
    pub(super) fn age(&self, revision: Revision, now: Duration) -> Duration {
        let steps = self.steps();
        let first = steps.partition_point(|step| step.revision < revision);
        steps.get(first).map_or(Duration::ZERO, |step| now.saturating_sub(step.known_at))
    }
}

/// The latest time at which a sidecar can have been confirmed without a revision of this age. The revision also tells when it was
/// made, by the clock of another machine.
pub(super) fn last_confirmation_without(revision: Revision, age: Duration, now: Timestamp) -> Timestamp {
    let made_at = Timestamp::from_micros(revision.number());
    now.saturating_sub(age).min(made_at.saturating_add(CLOCK_MARGIN))
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct TestClock {
        wall: AtomicI64,
        boot: AtomicI64,
    }

    impl TestClock {
        fn advance(&self, wall: i64, boot: i64) {
            self.wall.fetch_add(wall * 1_000_000, Ordering::SeqCst);
            self.boot.fetch_add(boot * 1_000_000, Ordering::SeqCst);
        }
    }

    impl Clock for TestClock {
        fn now(&self) -> Timestamp {
            Timestamp::from_micros(self.wall.load(Ordering::SeqCst))
        }

        fn since_boot(&self) -> Duration {
            Duration::from_micros(self.boot.load(Ordering::SeqCst).unsigned_abs())
        }
    }

    const fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    #[test]
    fn steady_clock_follows_backward_jumps_only() {
        let clock = Arc::new(TestClock::default());
        clock.advance(1000, 50);
        let steady = SteadyClock::new(Arc::clone(&clock) as Arc<dyn Clock>);
        clock.advance(10, 10);
        assert_eq!(steady.now(), at(1010));
        clock.advance(600, 1);
        assert_eq!(steady.now(), at(1011), "the wall clock has jumped forward");
        clock.advance(-1000, 0);
        assert_eq!(steady.now(), at(610), "the wall clock has jumped backward");
        clock.advance(700, 5);
        assert_eq!(steady.now(), at(615));
    }

    #[test]
    fn age_of_a_revision_counts_from_when_it_was_known() {
        let known = KnownRevisions::default();
        let revision = |number| Revision::new(number);
        let seconds = Duration::from_secs;
        assert_eq!(known.age(revision(1), seconds(99)), Duration::ZERO, "nothing is known");
        known.record(revision(10), seconds(100));
        known.record(revision(20), seconds(200));
        known.record(revision(30), seconds(300));
        for (number, age) in [(1, 300), (10, 300), (11, 200), (20, 200), (21, 100), (30, 100), (31, 0)] {
            assert_eq!(known.age(revision(number), seconds(400)), seconds(age), "{number}");
        }
    }

    #[test]
    fn revisions_of_one_step_count_as_known_at_its_end_and_steps_are_bounded() {
        let known = KnownRevisions::default();
        let millis = Duration::from_millis;
        for number in 0..50_000_u32 {
            known.record(Revision::new(number.into()), millis(100) * number);
        }
        assert_eq!(known.steps().len(), 5000);
        assert_eq!(known.age(Revision::new(41), millis(100) * 50), millis(100), "the step ends at 4.9 s");
        for number in 0..500_000_u32 {
            known.record(Revision::new(i64::from(number) + 50_000), millis(100) * (50_000 + number));
        }
        assert_eq!(known.steps().len(), MAX_STEPS);
    }

    #[test]
    fn later_confirmation_without_the_revision_is_not_possible() {
        let revision = Revision::new(at(1000).micros());
        assert_eq!(last_confirmation_without(revision, Duration::from_secs(20), at(1030)), at(1010));
        let unknown = last_confirmation_without(revision, Duration::ZERO, at(9000));
        assert_eq!(unknown, at(1000).saturating_add(CLOCK_MARGIN), "the process has started since");
    }
}
