//! The connection pools of the database, read whenever metrics are collected.

use super::store::TransactionKind;
use prometheus::{
    IntGaugeVec,
    core::{Collector, Desc},
    opts,
    proto::MetricFamily,
};

/// The connections of one pool.
#[derive(Debug, Clone, Copy)]
pub struct PoolStatus {
    /// The transactions that use the pool.
    pub kind: TransactionKind,
    /// Connections that a transaction has.
    pub in_use: u32,
    /// Open connections not in use.
    pub idle: u32,
    /// Upper bound of open connections.
    pub max: u32,
}

/// Collects the status of all pools.
pub(super) struct ConnectionPools {
    connections: IntGaugeVec,
    max: IntGaugeVec,
    read: Box<dyn Fn() -> Vec<PoolStatus> + Send + Sync>,
}

impl ConnectionPools {
    pub(super) fn new(read: Box<dyn Fn() -> Vec<PoolStatus> + Send + Sync>) -> prometheus::Result<Self> {
        let connections = "Database connections by pool and state: of a transaction, or idle";
        let max = "Maximum number of database connections by pool";
        Ok(Self {
            connections: IntGaugeVec::new(opts!("countersign_store_connections", connections), &["pool", "state"])?,
            max: IntGaugeVec::new(opts!("countersign_store_connections_max", max), &["pool"])?,
            read,
        })
    }
}

impl Collector for ConnectionPools {
    fn desc(&self) -> Vec<&Desc> {
        [self.connections.desc(), self.max.desc()].concat()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        for PoolStatus { kind, in_use, idle, max } in (self.read)() {
            for (state, count) in [("in_use", in_use), ("idle", idle)] {
                self.connections.with_label_values(&[kind.as_str(), state]).set(count.into());
            }
            self.max.with_label_values(&[kind.as_str()]).set(max.into());
        }
        [self.connections.collect(), self.max.collect()].concat()
    }
}
