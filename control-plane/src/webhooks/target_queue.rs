//! What is on its way to one target: how much at a time, and when it is left alone.

use super::dispatcher::AHEAD;
use crate::{domain::webhook::delivery::rest, store::deliveries::Leased};
use countersign_identity::Timestamp;
use std::{collections::VecDeque, time::Duration};

/// What is on its way to one target.
#[derive(Debug)]
pub struct Lane {
    /// How many may be under way.
    width: usize,
    /// How many are.
    under_way: usize,
    /// Taken, and not under way yet.
    ready: VecDeque<Leased>,
    /// How often it has failed in a row.
    failures: u32,
    /// When it failed last, on the boot-time clock.
    failed_at: Duration,
    /// Until then it is left alone, on the boot-time clock.
    rests_until: Duration,
    /// Whose turn it is, if only one of them can be taken.
    rather_new: bool,
    /// When its target was changed last.
    changed_at: Option<Timestamp>,
    /// Whether it was failing when it was last heard of.
    pub noted_as_failing: bool,
}

impl Lane {
    /// A target that nothing was sent to yet: it must earn more than one at a time.
    pub const fn new() -> Self {
        Self {
            width: 1,
            under_way: 0,
            ready: VecDeque::new(),
            failures: 0,
            failed_at: Duration::ZERO,
            rests_until: Duration::ZERO,
            rather_new: false,
            changed_at: None,
            noted_as_failing: false,
        }
    }

    /// Hears when its target was changed last; true if that was meanwhile. Then it is another target, for all that is known.
    pub fn hear(&mut self, changed_at: Timestamp) -> bool {
        let changed = self.changed_at.replace(changed_at).is_some_and(|before| before != changed_at);
        if changed {
            (self.width, self.failures, self.rests_until) = (1, 0, Duration::ZERO);
        }
        changed
    }

    /// How many more may be taken.
    pub fn wants(&self, now: Duration) -> usize {
        if now < self.rests_until { 0 } else { (self.width * AHEAD).saturating_sub(self.ready.len() + self.under_way) }
    }

    /// Whether it is the turn of what was never tried, rather than of what was.
    pub const fn rather_new(&mut self) -> bool {
        self.rather_new = !self.rather_new;
        self.rather_new
    }

    /// These were taken.
    pub fn take_in(&mut self, leased: Vec<Leased>) {
        self.ready.extend(leased);
    }

    /// The next to be sent, if one more may be under way now.
    pub fn start(&mut self, now: Duration) -> Option<Leased> {
        if now < self.rests_until || self.under_way >= self.width {
            return None;
        }
        let next = self.ready.pop_front()?;
        self.under_way += 1;
        Some(next)
    }

    /// One was not sent after all.
    pub const fn let_go(&mut self) {
        self.under_way = self.under_way.saturating_sub(1);
    }

    /// One was delivered.
    pub fn succeeded(&mut self, widest: usize) {
        self.let_go();
        self.failures = 0;
        self.width = (self.width + 1).min(widest);
    }

    /// One was not, which was sent at `began`.
    pub fn failed(&mut self, (began, now): (Duration, Duration), asked: Option<Duration>, dice: u32) {
        self.let_go();
        // What was under way together and fails together is one failure.
        if began >= self.failed_at {
            self.failures = self.failures.saturating_add(1);
            self.failed_at = now;
        }
        self.width = (self.width / 2).max(1);
        self.rests_until = self.rests_until.max(now.saturating_add(rest(self.failures, asked, dice)));
    }

    /// Whether it fails, as far as is known.
    pub const fn is_failing(&self) -> bool {
        self.failures > 0 || self.noted_as_failing
    }

    /// Until when it is left alone, if it is.
    pub fn rests_until(&self, now: Duration) -> Option<Duration> {
        (now < self.rests_until).then_some(self.rests_until)
    }

    /// Whether something was taken for it that was not sent.
    pub fn is_waiting(&self) -> bool {
        !self.ready.is_empty()
    }

    /// What was taken for it, sent or not.
    pub fn taken(&self) -> usize {
        self.ready.len() + self.under_way
    }

    /// Whether nothing need be remembered of it.
    pub fn is_idle(&self, now: Duration) -> bool {
        self.under_way == 0 && self.ready.is_empty() && self.rests_until <= now
    }

    /// How many are under way.
    pub const fn under_way(&self) -> usize {
        self.under_way
    }

    /// What was taken and not sent.
    pub fn give_back(&mut self) -> impl Iterator<Item = Leased> + '_ {
        self.ready.drain(..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_identity::{EventId, WebhookId};

    const START: Duration = Duration::from_secs(100);

    fn leased(count: usize) -> Vec<Leased> {
        let one = Leased {
            target: WebhookId::from_bits(1),
            event: EventId::from_bits(1),
            attempts: 0,
            is_test: false,
            until: Timestamp::from_seconds(1),
            body: String::new(),
        };
        vec![one; count]
    }

    #[test]
    fn a_target_earns_more_at_a_time_and_loses_it_faster() {
        let mut lane = Lane::new();
        assert_eq!(lane.wants(START), 2);
        lane.take_in(leased(100));
        for width in [1, 2, 4, 8, 8] {
            let started = std::iter::from_fn(|| lane.start(START)).count();
            assert_eq!((started, lane.under_way()), (width, width));
            (0..width).for_each(|_| lane.succeeded(8));
        }
        assert!(lane.start(START).is_some());
        lane.failed((START, START), None, 0);
        assert_eq!(std::iter::from_fn(|| lane.start(START)).count(), 4);
    }

    #[test]
    fn a_target_that_fails_again_and_again_is_left_alone() {
        let mut lane = Lane::new();
        lane.take_in(leased(100));
        for _ in 0..3 {
            assert!(lane.start(START).is_some());
            lane.failed((START, START), None, u32::MAX);
        }
        assert!(lane.start(START).is_none() && lane.wants(START) == 0 && lane.is_failing());
        let later = lane.rests_until(START).unwrap();
        assert!(lane.start(later).is_some() && lane.start(later).is_none(), "one at a time");
        lane.succeeded(8);
        assert!(!lane.is_failing());
    }

    #[test]
    fn what_fails_together_is_one_failure() {
        let mut lane = Lane::new();
        let (sent, ended) = (START, START + Duration::from_millis(20));
        lane.failed((sent, ended), None, 0);
        for _ in 0..15 {
            lane.failed((sent, ended + Duration::from_millis(1)), None, 0);
        }
        assert_eq!(lane.rests_until(ended + Duration::from_millis(1)), None);
        for more in [1, 2] {
            let later = ended + Duration::from_millis(100 * more);
            lane.failed((later, later), None, u32::MAX / 2);
        }
        let rest = lane.rests_until(ended).unwrap().saturating_sub(ended).as_secs_f64();
        assert!((1.1..1.3).contains(&rest), "{rest}");
    }

    #[test]
    fn a_target_that_was_changed_is_tried_at_once() {
        let mut lane = Lane::new();
        assert!(!lane.hear(Timestamp::from_seconds(1)) && !lane.hear(Timestamp::from_seconds(1)));
        lane.take_in(leased(2));
        lane.start(START).unwrap();
        lane.failed((START, START), Some(Duration::from_secs(30)), 0);
        assert!(lane.start(START).is_none() && lane.hear(Timestamp::from_seconds(2)));
        assert!(lane.start(START).is_some());
    }

    #[test]
    fn whoever_asks_for_a_rest_gets_it_at_once() {
        let mut lane = Lane::new();
        lane.take_in(leased(2));
        lane.start(START).unwrap();
        lane.failed((START, START), Some(Duration::from_secs(30)), 0);
        assert_eq!(lane.rests_until(START), Some(START + Duration::from_secs(30)));
        assert!(!lane.is_idle(START) && lane.start(START + Duration::from_secs(30)).is_some());
    }
}
