//! What every implementation of [`Windows`] must do, whatever it keeps its windows in.

use super::{Count, Kind, Quota, Reading, Subject, Verdict, Windows};
use std::{sync::Arc, time::Duration};
use tokio::task::JoinSet;

/// How many calls each subject of this test has.
const MOST: u32 = 3;

/// A window is walked through in so many steps.
const STEPS: u32 = 10;

/// How many ask at once.
const CROWD: usize = 50;

/// Whose windows they are, how long one is, how exactly it tells the time, and how time passes.
struct Stage<Pass> {
    windows: Arc<dyn Windows>,
    window: Duration,
    grain: Duration,
    pass: Pass,
}

/// After how long a call passes that was refused so; nothing if it was not.
pub fn wait_of(verdict: &Verdict) -> Duration {
    let exhausted = verdict.readings.iter().filter(|reading| !verdict.granted && reading.left == 0);
    exhausted.map(|reading| reading.wait).max().unwrap_or_default()
}

/// Asks all of it of these windows: `grain` is how exactly they tell the time, `pass` lets time pass.
pub async fn conforms(windows: Arc<dyn Windows>, window: Duration, grain: Duration, pass: impl AsyncFn(Duration)) {
    let stage = Stage { windows, window, grain, pass };
    stage.as_many_pass_as_may_and_one_more_after_the_wait().await;
    stage.what_was_refused_does_not_count().await;
    stage.each_subject_is_counted_alone().await;
    stage.of_several_all_are_taken_or_none().await;
    stage.who_looks_takes_nothing().await;
    stage.at_once_as_many_pass_as_may().await;
}

impl<Pass: AsyncFn(Duration)> Stage<Pass> {
    fn count(&self, name: &str) -> Count {
        let subject = Subject::new(Kind::Claimed, &[b"conformance", name.as_bytes()]);
        Count { subject, quota: Quota { most: MOST, window: self.window } }
    }

    async fn granted(&self, counts: &[Count]) -> bool {
        self.windows.take(counts).await.granted
    }

    /// Whether the duration is as expected, as exactly as these windows tell the time.
    fn is_about(&self, found: Duration, expected: Duration) -> bool {
        found.abs_diff(expected) <= self.grain
    }

    async fn as_many_pass_as_may_and_one_more_after_the_wait(&self) {
        let one = [self.count("one")];
        let step = self.window / STEPS;
        for left in (0..MOST).rev() {
            let verdict = self.windows.take(&one).await;
            assert!(verdict.granted && wait_of(&verdict).is_zero(), "{verdict:?}");
            let [Reading { left: found, wait }] = verdict.readings[..] else { panic!("{verdict:?}") };
            assert_eq!(found, left);
            assert!(self.is_about(wait, step * (STEPS + 1 + left - MOST)), "{wait:?}");
            (self.pass)(step).await;
        }
        // The window slides: each of the three comes free a window after it was taken, and not before.
        for _ in 0..MOST {
            let refused = self.windows.take(&one).await;
            assert!(!refused.granted && refused.readings[0].left == 0, "{refused:?}");
            let wait = wait_of(&refused);
            assert!(wait > Duration::ZERO && wait <= step * (STEPS - 2), "{wait:?}");
            (self.pass)(wait.saturating_sub(self.grain)).await;
            assert!(self.grain >= wait || !self.granted(&one).await, "a grain before");
            (self.pass)(self.grain).await;
            assert!(self.granted(&one).await, "after {wait:?}");
        }
    }

    async fn what_was_refused_does_not_count(&self) {
        let one = [self.count("insistent")];
        for _ in 0..MOST {
            assert!(self.granted(&one).await);
        }
        for _ in 0..10 {
            assert!(!self.granted(&one).await);
        }
        (self.pass)(self.window).await;
        for _ in 0..MOST {
            assert!(self.granted(&one).await);
        }
        assert!(!self.granted(&one).await);
    }

    async fn each_subject_is_counted_alone(&self) {
        let (one, other) = ([self.count("alone")], [self.count("another")]);
        for _ in 0..MOST {
            assert!(self.granted(&one).await);
        }
        assert!(!self.granted(&one).await);
        let verdict = self.windows.take(&other).await;
        assert!(verdict.granted && verdict.readings[0].left == MOST - 1, "{verdict:?}");
    }

    async fn of_several_all_are_taken_or_none(&self) {
        let (full, other) = (self.count("full"), self.count("beside it"));
        for _ in 0..MOST {
            assert!(self.granted(&[full]).await);
        }
        for counts in [[full, other], [other, full]] {
            let refused = self.windows.take(&counts).await;
            assert!(!refused.granted && refused.readings.len() == 2, "{refused:?}");
            assert!(wait_of(&refused) > Duration::ZERO && wait_of(&refused) <= self.window);
        }
        for left in (0..MOST).rev() {
            let verdict = self.windows.take(&[other]).await;
            assert!(verdict.granted && verdict.readings[0].left == left, "{verdict:?}");
        }
    }

    async fn who_looks_takes_nothing(&self) {
        let one = [self.count("looked at")];
        for _ in 0..10 {
            let seen = self.windows.look(&one).await;
            assert!(seen.granted && seen.readings[0].left == MOST, "{seen:?}");
        }
        for _ in 0..MOST {
            assert!(self.granted(&one).await);
        }
        let seen = self.windows.look(&one).await;
        assert!(!seen.granted && wait_of(&seen) > Duration::ZERO, "{seen:?}");
    }

    async fn at_once_as_many_pass_as_may(&self) {
        let one = self.count("a crowd");
        let mut crowd = JoinSet::new();
        for _ in 0..CROWD {
            let windows = Arc::clone(&self.windows);
            crowd.spawn(async move { windows.take(&[one]).await.granted });
        }
        let passed = crowd.join_all().await.into_iter().filter(|granted| *granted).count();
        assert_eq!(passed, MOST as usize);
    }
}
