//! How many lookups of webhook hosts run at a time, in total and for each owner.
//!
//! Each lookup occupies a thread until the resolver of the operating system gives up, which a name server that does not answer
//! can delay for a minute. The threads for lookups are those that also resolve the names of the database, Redis and issuers.

use crate::domain::webhook::{TargetOwner, owner_places::OwnerPlaces};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Maximum number of lookups of webhook hosts, also of those whose caller no longer waits.
const MAX_LOOKUPS: usize = 32;

/// The lookups in progress.
#[derive(Debug)]
pub(super) struct LookupSlots {
    places: Mutex<OwnerPlaces>,
    freed: Notify,
}

impl LookupSlots {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { places: Mutex::new(OwnerPlaces::new(MAX_LOOKUPS)), freed: Notify::new() })
    }

    /// Waits until the owner may start another lookup.
    pub(super) async fn take(self: &Arc<Self>, owner: &TargetOwner) -> LookupSlot {
        loop {
            // Created before the attempt, so that a slot that is freed after the attempt wakes this task.
            let freed = self.freed.notified();
            if self.places().try_take(owner) {
                return LookupSlot { slots: Arc::clone(self), owner: owner.clone() };
            }
            freed.await;
        }
    }

    fn places(&self) -> MutexGuard<'_, OwnerPlaces> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to run one lookup, until it is dropped.
#[derive(Debug)]
pub(super) struct LookupSlot {
    slots: Arc<LookupSlots>,
    owner: TargetOwner,
}

impl Drop for LookupSlot {
    fn drop(&mut self) {
        self.slots.places().give_back(&self.owner);
        self.slots.freed.notify_waiters();
    }
}
