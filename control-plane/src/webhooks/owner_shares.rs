//! How many attempts each owner of targets may have at a time.
//!
//! All owners have equal shares, regardless of the number of their targets. One further share stays free, so that the first
//! event of another owner does not wait for attempts in flight. The failing targets of an owner get at most half of the share.

use crate::domain::webhook::TargetOwner;
use std::collections::{BTreeMap, BTreeSet};

/// The order in which owners wait for a slot: if several owners use equally much, the owner whose last attempt started first
/// comes first. Otherwise owners could starve while there are more owners than slots.
#[derive(Debug, Default)]
pub(super) struct OwnerTurns {
    next: u64,
    last: BTreeMap<TargetOwner, u64>,
}

impl OwnerTurns {
    /// Removes owners that are not in `current`. New owners come after all other owners.
    pub(super) fn set_owners<'a>(&mut self, current: impl Iterator<Item = &'a TargetOwner>) {
        let current: BTreeSet<_> = current.collect();
        self.last.retain(|owner, _| current.contains(owner));
        for owner in current {
            if !self.last.contains_key(owner) {
                self.record_start(owner);
            }
        }
    }

    /// Records that an attempt of the owner starts. Returns the number of the turn, which grows with each call.
    pub(super) fn record_start(&mut self, owner: &TargetOwner) -> u64 {
        self.next += 1;
        self.last.insert(owner.clone(), self.next);
        self.next
    }

    /// Sorts targets so that owners take turns, first the owner that uses least. The targets of an owner keep their order.
    pub(super) fn sort<T>(
        &self,
        targets: Vec<T>,
        shares: &OwnerShares,
        owner_of: impl Fn(&T) -> &TargetOwner,
    ) -> Vec<T> {
        let mut counts = BTreeMap::new();
        let mut sorted = Vec::with_capacity(targets.len());
        for target in targets {
            let owner = owner_of(&target);
            let count = counts.entry(owner.clone()).or_insert(0_usize);
            *count += 1;
            let last_turn = self.last.get(owner).copied().unwrap_or_default();
            sorted.push(((*count, shares.used(owner), last_turn), target));
        }
        sorted.sort_by_key(|(turn, _)| *turn);
        sorted.into_iter().map(|(_, target)| target).collect()
    }
}

/// What one owner uses of its share.
#[derive(Debug, Clone, Copy, Default)]
struct OwnerUse {
    /// Number of targets among which the share is divided.
    targets: usize,
    /// Number of leases or attempts in flight.
    used: usize,
    /// Number of leases or attempts in flight of failing targets.
    used_by_failing: usize,
}

/// The shares of all owners, and what each owner uses. A unit is an attempt in flight or a lease.
#[derive(Debug, Default)]
pub(super) struct OwnerShares(BTreeMap<TargetOwner, OwnerUse>);

impl OwnerShares {
    /// Adds a target and the units that it uses.
    pub(super) fn add_target(&mut self, owner: &TargetOwner, used: usize, is_failing: bool) {
        let owner = self.0.entry(owner.clone()).or_default();
        owner.targets += 1;
        owner.used += used;
        owner.used_by_failing += if is_failing { used } else { 0 };
    }

    /// Number of units that an owner uses.
    fn used(&self, owner: &TargetOwner) -> usize {
        self.0.get(owner).map_or(0, |owner| owner.used)
    }

    /// How many further units of `total` a target may use that uses `used_by_target` units.
    pub(super) fn available(
        &self,
        total: usize,
        owner: &TargetOwner,
        (used_by_target, is_failing): (usize, bool),
    ) -> usize {
        let OwnerUse { targets, used, used_by_failing } = self.0.get(owner).copied().unwrap_or_default();
        let share = at_least_one(total / (self.0.len() + 1));
        let for_owner = share.saturating_sub(used);
        let for_failing = if is_failing { at_least_one(share / 2).saturating_sub(used_by_failing) } else { for_owner };
        let for_target = at_least_one(share / targets.max(1)).saturating_sub(used_by_target);
        for_owner.min(for_failing).min(for_target)
    }

    /// Counts further units of a target.
    pub(super) fn take(&mut self, owner: &TargetOwner, units: usize, is_failing: bool) {
        if let Some(owner) = self.0.get_mut(owner) {
            owner.used += units;
            owner.used_by_failing += if is_failing { units } else { 0 };
        }
    }
}

/// Every owner and every target gets at least one unit, even if there are more owners than units.
fn at_least_one(share: usize) -> usize {
    share.max(1)
}
