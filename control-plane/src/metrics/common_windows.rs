//! The common rate-limit windows, counted whenever metrics are collected.

use prometheus::{
    IntGauge,
    core::{Collector, Desc},
    proto::MetricFamily,
};

/// Collects the number of networks that share a rate-limit window.
pub(super) struct CommonWindows {
    windows: IntGauge,
    read: Box<dyn Fn() -> usize + Send + Sync>,
}

impl CommonWindows {
    pub(super) fn new(read: Box<dyn Fn() -> usize + Send + Sync>) -> prometheus::Result<Self> {
        let help = "Networks of clients without a credential that share one rate-limit window";
        Ok(Self { windows: IntGauge::new("countersign_rate_limit_common_windows", help)?, read })
    }
}

impl Collector for CommonWindows {
    fn desc(&self) -> Vec<&Desc> {
        self.windows.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.windows.set(i64::try_from((self.read)()).unwrap_or(i64::MAX));
        self.windows.collect()
    }
}
