//! Counts the failed logins for which we emit no events of their own.

use countersign_identity::{AgentId, ServiceId, Timestamp};
use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// The agent and the service of a burst: a series of failed logins. Only the first few of them become events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::operations) struct BurstKey {
    pub agent: AgentId,
    pub service: Option<ServiceId>,
}

/// The bursts that have had the maximum number of events, and how many further failures this process has counted in each.
#[derive(Default)]
pub struct SuppressedBursts(Mutex<HashMap<BurstKey, PendingCount>>);

struct PendingCount {
    burst_ends_at: Timestamp,
    /// Number of failures that are not stored in the database yet.
    count: u64,
}

impl SuppressedBursts {
    /// Counts a failure if its burst is suppressed. Returns whether the failure was counted.
    pub(in crate::operations) fn count_if_suppressed(&self, key: BurstKey, now: Timestamp) -> bool {
        let mut bursts = self.lock();
        match bursts.get_mut(&key) {
            Some(pending) if now < pending.burst_ends_at => {
                pending.count += 1;
                true
            }
            Some(_) | None => false,
        }
    }

    /// Suppresses events for further failures until the end of the burst. A count that is not stored yet remains.
    pub(in crate::operations) fn suppress(&self, key: BurstKey, burst_ends_at: Timestamp) {
        self.lock().entry(key).or_insert(PendingCount { burst_ends_at, count: 0 }).burst_ends_at = burst_ends_at;
    }

    /// All counts above zero. They are sorted, because all processes must lock the rows of bursts in the same order.
    pub(in crate::operations) fn pending_counts(&self) -> Vec<(BurstKey, u64)> {
        let bursts = self.lock();
        let pending = bursts.iter().filter(|(_, pending)| pending.count > 0);
        let mut pending: Vec<_> = pending.map(|(key, pending)| (*key, pending.count)).collect();
        pending.sort_unstable();
        pending
    }

    /// Subtracts counts that are now stored in the database.
    pub(in crate::operations) fn subtract(&self, stored: &[(BurstKey, u64)]) {
        let mut bursts = self.lock();
        for (key, count) in stored {
            if let Some(pending) = bursts.get_mut(key) {
                pending.count = pending.count.saturating_sub(*count);
            }
        }
    }

    /// Removes bursts that have ended and whose counts are stored.
    pub(in crate::operations) fn remove_ended(&self, now: Timestamp) {
        self.lock().retain(|_, pending| pending.count > 0 || now < pending.burst_ends_at);
    }
    fn lock(&self) -> MutexGuard<'_, HashMap<BurstKey, PendingCount>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
