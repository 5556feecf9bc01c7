//! The state of housekeeping, read whenever metrics are collected.

use prometheus::{
    GaugeVec, IntCounterVec,
    core::{Collector, Desc},
    opts,
    proto::MetricFamily,
};

/// The state of one kind of rows that housekeeping deletes.
#[derive(Debug, Clone, Copy)]
pub struct HousekeepingStatus {
    /// Name of the kind.
    pub data: &'static str,
    /// Since when the oldest row can be deleted, in Unix seconds; 0 if no row can be deleted.
    pub oldest: f64,
    /// Number of rows that this process has deleted.
    pub deleted: u64,
}

/// Collects the state of all kinds of rows.
pub(super) struct HousekeepingMetrics {
    oldest: GaugeVec,
    deleted: IntCounterVec,
    read: Box<dyn Fn() -> Vec<HousekeepingStatus> + Send + Sync>,
}

impl HousekeepingMetrics {
    pub(super) fn new(read: Box<dyn Fn() -> Vec<HousekeepingStatus> + Send + Sync>) -> prometheus::Result<Self> {
        let oldest =
            "Since when the oldest row that can be deleted waits for its deletion, in Unix seconds; 0 if none waits";
        let deleted = "Rows that housekeeping has deleted";
        Ok(Self {
            oldest: GaugeVec::new(
                opts!("countersign_housekeeping_oldest_expired_timestamp_seconds", oldest),
                &["data"],
            )?,
            deleted: IntCounterVec::new(opts!("countersign_housekeeping_deleted_rows_total", deleted), &["data"])?,
            read,
        })
    }
}

impl Collector for HousekeepingMetrics {
    fn desc(&self) -> Vec<&Desc> {
        [self.oldest.desc(), self.deleted.desc()].concat()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        for HousekeepingStatus { data, oldest, deleted } in (self.read)() {
            self.oldest.with_label_values(&[data]).set(oldest);
            let counter = self.deleted.with_label_values(&[data]);
            counter.inc_by(deleted.saturating_sub(counter.get()));
        }
        [self.oldest.collect(), self.deleted.collect()].concat()
    }
}
