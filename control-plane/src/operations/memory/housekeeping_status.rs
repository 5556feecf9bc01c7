//! The state of housekeeping in memory, for `/health` and the metrics.

use crate::domain::housekeeping::{ExpiredData, HousekeepingHealth};
use countersign_identity::Timestamp;
use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// The state of housekeeping in this process.
pub struct HousekeepingStatus {
    data: Vec<(ExpiredData, DataStatus)>,
    /// Time of the last complete pass, in milliseconds of the boot-time clock.
    completed_at: AtomicU64,
}

/// The state of one kind of rows.
#[derive(Default)]
struct DataStatus {
    /// Since when the oldest row can be deleted.
    oldest: Mutex<Option<Timestamp>>,
    /// Number of rows that this process has deleted.
    deleted: AtomicU64,
}

/// The state of one kind of rows, for the metrics.
#[derive(Debug, Clone, Copy)]
pub struct HousekeepingSample {
    /// The kind of rows.
    pub data: ExpiredData,
    /// Since when the oldest row can be deleted; `None` if no row can be deleted.
    pub oldest: Option<Timestamp>,
    /// Number of rows that this process has deleted.
    pub deleted: u64,
}

impl HousekeepingStatus {
    /// The state of a process that starts now: the first pass may take as long as any other.
    pub fn new(since_boot: Duration) -> Self {
        let data = ExpiredData::ALL.iter().map(|data| (*data, DataStatus::default())).collect();
        Self { data, completed_at: AtomicU64::new(millis(since_boot)) }
    }

    /// Records since when the oldest row can be deleted.
    pub(in crate::operations) fn set_oldest(&self, data: ExpiredData, oldest: Option<Timestamp>) {
        if let Some(status) = self.status_of(data) {
            *status.oldest.lock().unwrap_or_else(PoisonError::into_inner) = oldest;
        }
    }

    /// Counts deleted rows.
    pub(in crate::operations) fn add_deleted(&self, data: ExpiredData, rows: u64) {
        if let Some(status) = self.status_of(data) {
            status.deleted.fetch_add(rows, Ordering::Relaxed);
        }
    }

    /// Records that a pass is complete.
    pub(in crate::operations) fn record_complete_pass(&self, since_boot: Duration) {
        self.completed_at.store(millis(since_boot), Ordering::Relaxed);
    }

    /// The state of all kinds of rows.
    pub fn samples(&self) -> Vec<HousekeepingSample> {
        let sample = |(data, status): &(ExpiredData, DataStatus)| {
            let oldest = *status.oldest.lock().unwrap_or_else(PoisonError::into_inner);
            HousekeepingSample { data: *data, oldest, deleted: status.deleted.load(Ordering::Relaxed) }
        };
        self.data.iter().map(sample).collect()
    }

    /// Whether housekeeping keeps up.
    pub fn health(&self, now: Timestamp, since_boot: Duration) -> HousekeepingHealth {
        let last_pass = millis(since_boot).saturating_sub(self.completed_at.load(Ordering::Relaxed));
        let samples = self.samples().into_iter();
        let waits = samples.filter_map(|sample| Some((sample.data, now.duration_since(sample.oldest?))));
        HousekeepingHealth::from_ages(Duration::from_millis(last_pass), waits.max_by_key(|(_, wait)| *wait))
    }

    fn status_of(&self, data: ExpiredData) -> Option<&DataStatus> {
        self.data.iter().find(|(other, _)| *other == data).map(|(_, status)| status)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
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
