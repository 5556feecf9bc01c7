//! What background jobs remember: the state of housekeeping, for `/health` and the metrics, and where the next run of
//! `confirm_changes` continues. This job confirms a change when it is in force at all sidecars.

use crate::domain::housekeeping::{ExpiredData, HousekeepingHealth};
use countersign_identity::Timestamp;
use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Where the next run of `confirm_changes` continues.
#[derive(Default)]
pub(in crate::operations) struct ConfirmationTurn {
    /// The last audit chain that we looked at.
    pub after: String,
    /// The oldest change that is not confirmed, in the chains up to `after`: when it was made, and its chain.
    pub oldest: Option<(Timestamp, String)>,
    /// When we last logged that a change is not confirmed, since boot.
    pub logged_at: Option<Duration>,
}

pub struct HousekeepingStatus(Mutex<Housekeeping>);

struct Housekeeping {
    samples: Vec<HousekeepingSample>,
    /// Time of the last complete pass, since boot.
    completed_at: Duration,
}

#[derive(Debug, Clone, Copy)]
pub struct HousekeepingSample {
    pub data: ExpiredData,
    /// Since when the oldest row can be deleted; `None` if no row can be deleted.
    pub oldest: Option<Timestamp>,
    /// Number of rows that this process has deleted.
    pub deleted: u64,
}

impl HousekeepingStatus {
    /// The state of a process that starts now. The start counts as a complete pass, so that the first pass is not overdue.
    pub fn new(since_boot: Duration) -> Self {
        let sample = |data: &ExpiredData| HousekeepingSample { data: *data, oldest: None, deleted: 0 };
        let samples = ExpiredData::ALL.iter().map(sample).collect();
        Self(Mutex::new(Housekeeping { samples, completed_at: since_boot }))
    }

    /// Records since when the oldest row can be deleted.
    pub(in crate::operations) fn set_oldest(&self, data: ExpiredData, oldest: Option<Timestamp>) {
        self.change(data, |sample| sample.oldest = oldest);
    }

    pub(in crate::operations) fn add_deleted(&self, data: ExpiredData, rows: u64) {
        self.change(data, |sample| sample.deleted += rows);
    }

    pub(in crate::operations) fn record_complete_pass(&self, since_boot: Duration) {
        self.lock().completed_at = since_boot;
    }

    pub fn samples(&self) -> Vec<HousekeepingSample> {
        self.lock().samples.clone()
    }

    /// Whether housekeeping keeps up.
    pub fn health(&self, now: Timestamp, since_boot: Duration) -> HousekeepingHealth {
        let state = self.lock();
        let waits = state.samples.iter().filter_map(|sample| Some((sample.data, now.duration_since(sample.oldest?))));
        let longest = waits.max_by_key(|(_, wait)| *wait);
        HousekeepingHealth::from_ages(since_boot.saturating_sub(state.completed_at), longest)
    }

    fn change(&self, data: ExpiredData, change: impl FnOnce(&mut HousekeepingSample)) {
        if let Some(sample) = self.lock().samples.iter_mut().find(|sample| sample.data == data) {
            change(sample);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Housekeeping> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_follows_the_oldest_row_and_the_last_pass() {
        let hours = |hours| Duration::from_hours(hours);
        let status = HousekeepingStatus::new(hours(10));
        let now = Timestamp::from_seconds(100_000);
        assert_eq!(status.health(now, hours(11)), HousekeepingHealth::Up);
        status.set_oldest(ExpiredData::Changes, Some(now.saturating_sub(hours(2))));
        status.set_oldest(ExpiredData::Sessions, Some(now.saturating_sub(hours(3))));
        assert_eq!(status.health(now, hours(11)), HousekeepingHealth::Overdue(ExpiredData::Sessions));
        status.set_oldest(ExpiredData::Sessions, None);
        assert_eq!(status.health(now, hours(11)), HousekeepingHealth::Overdue(ExpiredData::Changes));
        status.set_oldest(ExpiredData::Changes, None);
        assert_eq!(status.health(now, hours(13)), HousekeepingHealth::Stalled);
        status.record_complete_pass(hours(13));
        assert_eq!(status.health(now, hours(13)), HousekeepingHealth::Up);
    }

    #[test]
    fn samples_show_every_kind_of_rows() {
        let status = HousekeepingStatus::new(Duration::ZERO);
        status.add_deleted(ExpiredData::DeletedRoles, 3);
        status.add_deleted(ExpiredData::DeletedRoles, 4);
        let samples = status.samples();
        assert_eq!(samples.iter().map(|sample| sample.data).collect::<Vec<_>>(), ExpiredData::ALL);
        let deleted = |sample: &HousekeepingSample| if sample.data == ExpiredData::DeletedRoles { 7 } else { 0 };
        assert!(samples.iter().all(|sample| sample.deleted == deleted(sample) && sample.oldest.is_none()));
    }
}
