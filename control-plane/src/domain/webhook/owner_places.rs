//! Divides a fixed number of places among the owners of webhook targets, for resources that an owner can keep for long.

use super::TargetOwner;
use std::collections::BTreeMap;

/// An owner gets another place while it has less than this part of the free places.
const PART_OF_FREE: usize = 4;

/// A fixed number of places. An owner gets another place while it has less than a quarter of the free places, so one owner
/// never gets more than about a fifth of all, and several owners together leave places for others.
#[derive(Debug)]
pub struct OwnerPlaces {
    free: usize,
    taken: BTreeMap<TargetOwner, usize>,
}

impl OwnerPlaces {
    /// Free places.
    pub const fn new(total: usize) -> Self {
        Self { free: total, taken: BTreeMap::new() }
    }

    /// Takes a place for an owner. Returns false if the owner gets none now.
    pub fn try_take(&mut self, owner: &TargetOwner) -> bool {
        let taken = self.taken.get(owner).copied().unwrap_or_default();
        let is_allowed = taken * PART_OF_FREE < self.free;
        if is_allowed {
            self.free -= 1;
            self.taken.insert(owner.clone(), taken + 1);
        }
        is_allowed
    }

    /// Gives back a place that the owner has taken.
    pub fn give_back(&mut self, owner: &TargetOwner) {
        if let Some(taken) = self.taken.get_mut(owner) {
            *taken -= 1;
            self.free += 1;
            if *taken == 0 {
                self.taken.remove(owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::agent::Owner;

    fn owner(number: usize) -> TargetOwner {
        TargetOwner::Person(Owner { issuer: "https://issuer".to_owned(), subject: number.to_string() })
    }

    fn take_all(places: &mut OwnerPlaces, owner: &TargetOwner) -> usize {
        (0..100).take_while(|_| places.try_take(owner)).count()
    }

    #[test]
    fn greedy_owners_leave_places_for_others() {
        let mut places = OwnerPlaces::new(32);
        assert_eq!(take_all(&mut places, &owner(0)), 7);
        let greedy: usize = (1..8).map(|number| take_all(&mut places, &owner(number))).sum();
        assert_eq!(places.free, 4, "eight greedy owners have {}", 7 + greedy);
        let last = (8..100).take_while(|number| places.try_take(&owner(*number))).count();
        assert_eq!((last, places.free), (4, 0), "every free place is for an owner without one");
        places.give_back(&owner(0));
        assert!(!places.try_take(&owner(1)) && places.try_take(&owner(99)));
    }

    #[test]
    fn places_that_were_given_back_are_free() {
        let mut places = OwnerPlaces::new(8);
        let taken = take_all(&mut places, &TargetOwner::Deployment);
        (0..taken).for_each(|_| places.give_back(&TargetOwner::Deployment));
        places.give_back(&TargetOwner::Deployment);
        assert!(places.free == 8 && places.taken.is_empty());
    }
}
