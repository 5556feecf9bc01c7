//! Metrics whose values are read whenever metrics are collected.

use super::{Metrics, store::TransactionKind};
use prometheus::{
    GaugeVec, IntCounterVec, IntGaugeVec,
    core::{Collector, Desc},
    opts,
    proto::MetricFamily,
};

/// The connections of one pool.
#[derive(Debug, Clone, Copy)]
pub struct PoolStatus {
    /// The transactions that use the pool.
    pub kind: TransactionKind,
    /// Connections that transactions use.
    pub in_use: u32,
    /// Open connections not in use.
    pub idle: u32,
    /// Upper bound of open connections.
    pub max: u32,
}

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

/// Metrics that are updated before each collection.
struct UpdatedOnCollection {
    metrics: [Box<dyn Collector>; 2],
    update: Box<dyn Fn() + Send + Sync>,
}

impl Metrics {
    /// Exposes the connection pools of the database. `read` returns the status of the pools whenever metrics are collected.
    pub fn expose_connection_pools(
        &self,
        read: impl Fn() -> Vec<PoolStatus> + Send + Sync + 'static,
    ) -> prometheus::Result<()> {
        let help = "Database connections by pool and state: of a transaction, or idle";
        let connections = IntGaugeVec::new(opts!("countersign_store_connections", help), &["pool", "state"])?;
        let help = "Maximum number of database connections by pool";
        let limits = IntGaugeVec::new(opts!("countersign_store_connections_max", help), &["pool"])?;
        let metrics: [Box<dyn Collector>; 2] = [Box::new(connections.clone()), Box::new(limits.clone())];
        let update = move || {
            for PoolStatus { kind, in_use, idle, max } in read() {
                for (state, count) in [("in_use", in_use), ("idle", idle)] {
                    connections.with_label_values(&[kind.as_str(), state]).set(count.into());
                }
                limits.with_label_values(&[kind.as_str()]).set(max.into());
            }
        };
        self.registry.register(Box::new(UpdatedOnCollection { metrics, update: Box::new(update) }))
    }

    /// Exposes the state of housekeeping. `read` returns the status of each kind of rows whenever metrics are collected.
    pub fn expose_housekeeping(
        &self,
        read: impl Fn() -> Vec<HousekeepingStatus> + Send + Sync + 'static,
    ) -> prometheus::Result<()> {
        let help =
            "Since when the oldest row that can be deleted waits for its deletion, in Unix seconds; 0 if none waits";
        let name = "countersign_housekeeping_oldest_expired_timestamp_seconds";
        let oldest_rows = GaugeVec::new(opts!(name, help), &["data"])?;
        let help = "Rows that housekeeping has deleted";
        let deleted_rows = IntCounterVec::new(opts!("countersign_housekeeping_deleted_rows_total", help), &["data"])?;
        let metrics: [Box<dyn Collector>; 2] = [Box::new(oldest_rows.clone()), Box::new(deleted_rows.clone())];
        let update = move || {
            for HousekeepingStatus { data, oldest, deleted } in read() {
                oldest_rows.with_label_values(&[data]).set(oldest);
                // A counter cannot be set, so we add the difference.
                let counter = deleted_rows.with_label_values(&[data]);
                counter.inc_by(deleted.saturating_sub(counter.get()));
            }
        };
        self.registry.register(Box::new(UpdatedOnCollection { metrics, update: Box::new(update) }))
    }
}

impl Collector for UpdatedOnCollection {
    fn desc(&self) -> Vec<&Desc> {
        self.metrics.iter().flat_map(|metric| metric.desc()).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        (self.update)();
        self.metrics.iter().flat_map(|metric| metric.collect()).collect()
    }
}
