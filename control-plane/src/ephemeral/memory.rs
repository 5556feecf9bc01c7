//! Windows in the memory of this process: for each subject the instants of its calls in the last window.
//!
//! Its size is bounded. A table that is full forgets what has expired, and then refuses *new* subjects: nobody's
//! window is evicted to make room for another's. Who proved who they are have a table of their own, which those
//! who only claim something cannot fill.

use super::{Answer, Count, Kind, Presence, Reading, Subject, Verdict, Windows};
use countersign_process::Clock;
use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// Subjects in each of the two tables. One takes some 200 bytes, and 8 more for each call in its window.
const CAPACITY: usize = 1 << 18;

/// A full table is not searched for what has expired more often than this, however many ask for room.
const SEARCH_PAUSE: u64 = 1_000_000;

/// Windows in memory.
pub struct Memory {
    clock: Arc<dyn Clock>,
    capacity: usize,
    tables: Mutex<Tables>,
}

#[derive(Default)]
struct Tables {
    proven: Table,
    claimed: Table,
}

#[derive(Default)]
struct Table {
    logs: HashMap<Subject, Log>,
    /// When it was last searched, in microseconds since boot.
    searched: u64,
}

/// The calls of one subject within its window, in microseconds since boot, the oldest first.
#[derive(Default)]
struct Log {
    window: u64,
    calls: VecDeque<u64>,
}

impl Memory {
    /// Empty windows.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self::of_capacity(CAPACITY, clock)
    }

    fn of_capacity(capacity: usize, clock: Arc<dyn Clock>) -> Self {
        Self { clock, capacity, tables: Mutex::default() }
    }

    fn judge(&self, counts: &[Count], take: bool) -> Verdict {
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        // Read under the lock, so that the calls of a log are in their order.
        let now = micros(self.clock.since_boot());
        let before: Vec<_> =
            counts.iter().map(|count| tables.of(count.subject).read(count, now, self.capacity)).collect();
        let granted = before.iter().all(|reading| reading.left > 0);
        if !take || !granted {
            return Verdict { granted, readings: before };
        }
        let readings = counts.iter().map(|count| tables.of(count.subject).take(count, now)).collect();
        Verdict { granted, readings }
    }
}

impl Windows for Memory {
    fn take<'a>(&'a self, counts: &'a [Count]) -> Answer<'a> {
        Box::pin(async { self.judge(counts, true) })
    }

    fn look<'a>(&'a self, counts: &'a [Count]) -> Answer<'a> {
        Box::pin(async { self.judge(counts, false) })
    }

    fn presence(&self) -> Presence {
        Presence::Own
    }
}

impl Tables {
    const fn of(&mut self, subject: Subject) -> &mut Table {
        match subject.kind {
            Kind::Proven => &mut self.proven,
            Kind::Claimed => &mut self.claimed,
        }
    }
}

impl Table {
    /// What is left; of a subject for which there is no room, nothing.
    fn read(&mut self, count: &Count, now: u64, capacity: usize) -> Reading {
        self.forget_expired(micros(count.quota.window), now, capacity);
        let full = self.logs.len() >= capacity;
        match self.logs.get_mut(&count.subject) {
            Some(log) => {
                log.forget_expired(now);
                log.read(count.quota.most, now)
            }
            None if full => Reading { left: 0, wait: count.quota.window },
            None => Reading { left: count.quota.most, wait: Duration::ZERO },
        }
    }

    fn take(&mut self, count: &Count, now: u64) -> Reading {
        let log = self.logs.entry(count.subject).or_default();
        log.window = micros(count.quota.window);
        log.calls.push_back(now);
        log.read(count.quota.most, now)
    }

    /// Once in a window, so that nothing is kept for long; and for room, when there is none.
    fn forget_expired(&mut self, window: u64, now: u64, capacity: usize) {
        let pause = if self.logs.len() >= capacity { SEARCH_PAUSE.min(window) } else { window };
        if now.saturating_sub(self.searched) < pause {
            return;
        }
        self.searched = now;
        self.logs.retain(|_, log| log.calls.back().is_some_and(|last| now.saturating_sub(*last) < log.window));
        if self.logs.len() < self.logs.capacity() / 4 {
            self.logs.shrink_to_fit();
        }
    }
}

impl Log {
    fn forget_expired(&mut self, now: u64) {
        while self.calls.front().is_some_and(|first| now.saturating_sub(*first) >= self.window) {
            self.calls.pop_front();
        }
    }

    fn read(&self, most: u32, now: u64) -> Reading {
        let left = most.saturating_sub(u32::try_from(self.calls.len()).unwrap_or(u32::MAX));
        let until = self.calls.front().map(|first| first.saturating_add(self.window).saturating_sub(now));
        Reading { left, wait: Duration::from_micros(until.unwrap_or_default()) }
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ephemeral::{
        Quota,
        conformance::{conforms, wait_of},
    };
    use countersign_identity::Timestamp;
    use proptest::prelude::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    const WINDOW: Duration = Duration::from_mins(1);

    /// A clock that is moved by hand.
    #[derive(Default)]
    struct Hand(AtomicU64);

    impl Clock for Hand {
        fn now(&self) -> Timestamp {
            Timestamp::from_micros(0)
        }

        fn since_boot(&self) -> Duration {
            Duration::from_micros(self.0.load(Ordering::SeqCst))
        }
    }

    impl Hand {
        fn advance(&self, span: Duration) {
            self.0.fetch_add(micros(span), Ordering::SeqCst);
        }
    }

    fn count(kind: Kind, name: u32, most: u32) -> Count {
        Count { subject: Subject::new(kind, &[&name.to_be_bytes()]), quota: Quota { most, window: WINDOW } }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn it_conforms() {
        let hand = Arc::new(Hand::default());
        let memory = Arc::new(Memory::new(hand.clone()));
        conforms(memory, WINDOW, Duration::from_micros(1), async |span| hand.advance(span)).await;
    }

    #[test]
    fn a_full_table_forgets_what_expired_and_else_refuses_whoever_is_new() {
        let hand = Arc::new(Hand::default());
        let memory = Memory::of_capacity(3, hand.clone());
        let take = |count: Count| memory.judge(&[count], true);
        for name in 0..3 {
            hand.advance(Duration::from_secs(1));
            assert!(take(count(Kind::Claimed, name, 2)).granted);
        }
        let refused = take(count(Kind::Claimed, 3, 2));
        assert!(!refused.granted);
        assert_eq!(wait_of(&refused), WINDOW);
        assert!(take(count(Kind::Claimed, 0, 2)).granted, "who is there keeps what is left");
        assert!(!take(count(Kind::Claimed, 0, 2)).granted, "and no more");
        assert!(take(count(Kind::Proven, 3, 2)).granted, "who proved something has another table");
        // The second has expired by then, the first was used again; the third stays.
        hand.advance(Duration::from_secs(59));
        assert!(take(count(Kind::Claimed, 3, 2)).granted);
        assert!(!take(count(Kind::Claimed, 4, 2)).granted);
        assert!(!take(count(Kind::Claimed, 0, 1)).granted, "a window that lives is never forgotten");
    }

    #[test]
    fn what_expired_does_not_stay() {
        let hand = Arc::new(Hand::default());
        let memory = Memory::new(hand.clone());
        for name in 0..1000 {
            memory.judge(&[count(Kind::Claimed, name, 1)], true);
        }
        hand.advance(WINDOW);
        memory.judge(&[count(Kind::Claimed, 1, 1)], true);
        let tables = memory.tables.lock().unwrap();
        assert!(tables.claimed.logs.len() == 1 && tables.claimed.logs.capacity() < 100);
    }

    proptest! {
        /// What must pass is worked out once more from the instants of all calls that passed.
        #[test]
        fn in_any_window_at_most_so_many_pass_and_nobody_is_refused_before(
            most in 1_u32..6,
            pauses in prop::collection::vec(prop_oneof![
                0_u64..5, 0_u64..20_000_000, Just(60_000_000), Just(59_999_999), 0_u64..130_000_000,
            ], 1..60),
        ) {
            let hand = Arc::new(Hand::default());
            let memory = Memory::new(hand.clone());
            let (mut now, mut passed) = (0_u64, Vec::<u64>::new());
            for pause in pauses {
                hand.advance(Duration::from_micros(pause));
                now += pause;
                let minute_before = passed.iter().filter(|at| now - **at < 60_000_000).count();
                let verdict = memory.judge(&[count(Kind::Claimed, 7, most)], true);
                prop_assert_eq!(verdict.granted, minute_before < most as usize, "at {}", now);
                if verdict.granted {
                    passed.push(now);
                } else {
                    let oldest = passed[passed.len() - most as usize];
                    prop_assert_eq!(wait_of(&verdict), Duration::from_micros(oldest + 60_000_000 - now));
                }
            }
            for (first, at) in passed.iter().enumerate() {
                let within = passed[first..].iter().filter(|other| **other - at < 60_000_000).count();
                prop_assert!(within <= most as usize);
            }
        }
    }
}
