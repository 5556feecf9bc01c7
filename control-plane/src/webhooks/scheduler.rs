//! Who gets how much of what the courier can do at a time.

use super::{
 dispatcher::{
    AHEAD, Round,
    delivery_queue::{self, Looked, Wanted},
};
use crate::{domain::webhook::Target, store::StoreError, webhooks::target_queue::Lane};
use std::time::Duration;

/// Of all tries at a time, tests are one in so many at the most; and one for each target.
const TESTS_SHARE: usize = 8;

impl Round {
    /// What is to be taken: for each target that has something due, as much as it may be sent.
    pub(super) async fn wanted(&mut self) -> Result<Vec<Wanted>, StoreError> {
        let (now, boot) = (self.courier.clock.now(), self.courier.clock.since_boot());
        let waiting = self.lanes.iter().filter(|(_, lane)| lane.is_waiting()).map(|(target, _)| *target).collect();
        let Looked { due, tests, waiting } = delivery_queue::look(&self.courier.store, waiting, now).await?;
        for (target, changed_at) in waiting {
            let lane = self.lanes.get_mut(&target);
            if lane.is_some_and(|lane| changed_at.is_none_or(|changed_at| lane.hear(changed_at))) {
                self.leave(target);
            }
        }
        self.lanes.retain(|target, lane| !lane.is_idle(boot) || due.iter().any(|due| due.id == *target));
        let mut wanted = self.wanted_of(due, boot);
        let untested = tests.into_iter().filter(|target| !self.tested.contains(&target.id));
        wanted.extend(untested.take(self.most_tests()).map(Wanted::test));
        Ok(wanted)
    }

    /// First for whom least was taken; for nobody more than their share, and for everybody at least one.
    fn wanted_of(&mut self, due: Vec<Target>, boot: Duration) -> Vec<Wanted> {
        for target in &due {
            let lane = self.lanes.entry(target.id).or_insert_with(Lane::new);
            lane.noted_as_failing |= target.failing_since.is_some();
            lane.hear(target.updated_at);
        }
        let at_work = self.lanes.values().filter(|lane| lane.rests_until(boot).is_none()).count();
        let share = self.share(at_work);
        let taken = |target: &Target| self.lanes.get(&target.id).map_or(0, Lane::taken);
        let mut due: Vec<_> = due.into_iter().map(|target| (taken(&target), target)).collect();
        due.sort_by_key(|(taken, _)| *taken);
        let mut wanted = Vec::new();
        for (taken, target) in due {
            let Some(lane) = self.lanes.get_mut(&target.id) else { continue };
            let count = lane.wants(boot).min((share * AHEAD).saturating_sub(taken));
            if count > 0 && wanted.len() < self.courier.rules.widest {
                wanted.push(Wanted::due(target, count, lane.rather_new()));
            }
        }
        wanted
    }

    /// What one of so many targets may have under way while the others have work too.
    fn share(&self, at_work: usize) -> usize {
        (self.courier.rules.widest / at_work.max(1)).max(1)
    }

    /// Sends whatever may be under way now: first for whom least is, and to nobody more than their share while others wait.
    /// Targets that fail get no more than half of all.
    pub(super) fn send_all(&mut self) {
        let boot = self.courier.clock.since_boot();
        while self.has_room()
            && self.tested.len() < self.most_tests() + self.tests.len()
            && let Some(test) = self.tests.pop_front()
        {
            self.send(test);
        }
        let failing: usize = self.lanes.values().filter(|lane| lane.is_failing()).map(Lane::under_way).sum();
        let mut left_for_failing = (self.courier.rules.widest / 2).saturating_sub(failing);
        let at_work = self.lanes.values().filter(|lane| lane.taken() > 0).count();
        let share = self.share(at_work);
        let waiting = self.lanes.iter().filter(|(_, lane)| lane.is_waiting());
        let mut waiting: Vec<_> = waiting.map(|(target, lane)| (lane.under_way(), *target)).collect();
        waiting.sort_unstable();
        for (_, target) in waiting {
            while self.has_room()
                && let Some(lane) = self.lanes.get_mut(&target)
                && lane.under_way() < share
                && (left_for_failing > 0 || !lane.is_failing())
                && let Some(leased) = lane.start(boot)
            {
                left_for_failing -= usize::from(lane.is_failing());
                self.send(leased);
            }
        }
        self.addressees.retain(|target, _| self.lanes.contains_key(target) || self.tested.contains(target));
    }

    /// Tests that may be under way.
    fn most_tests(&self) -> usize {
        (self.courier.rules.widest / TESTS_SHARE).max(1)
    }
}
