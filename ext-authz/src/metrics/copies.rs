//! The metrics of copies of views on disk.

use countersign_identity::{ServiceId, Timestamp};
use countersign_process::{label_values, telemetry::MetricFactory};
use prometheus::{GaugeVec, IntCounterVec, IntGaugeVec};

label_values! {
    /// Why a copy of a view is not used.
    #[derive(thiserror::Error)]
    pub enum CopyRejection {
        #[error("the file is damaged or was changed")]
        Corrupt = "corrupt",
        #[error("the file was written with another API key")]
        Foreign = "foreign",
        #[error("its last confirmation is in the future: the clock of this system was set back")]
        Future = "future",
        #[error("its last confirmation is older than max_staleness")]
        TooOld = "too_old",
        #[error("another version of the sidecar wrote the file")]
        UnknownVersion = "unknown_version",
        #[error("the file cannot be read, or is not a regular file")]
        Unreadable = "unreadable",
        #[error("the file is larger than a copy can be")]
        TooLarge = "too_large",
        #[error("the control plane refuses the API key")]
        KeyRefused = "key_refused",
    }
}

#[derive(Debug)]
pub struct CopyMetrics {
    rejected: IntCounterVec,
    writes: IntCounterVec,
    bytes: IntGaugeVec,
    confirmed: GaugeVec,
    in_use: IntGaugeVec,
}

impl CopyMetrics {
    pub fn new(factory: &MetricFactory) -> Result<Self, prometheus::Error> {
        let rejected = "Copies of views on disk that were not used, by reason";
        let reasons = CopyRejection::ALL.iter().map(|reason| reason.as_str());
        let writes = "Writes of copies of views to disk, by result";
        let confirmed = "Last confirmation of the view in the copy on disk, in Unix seconds";
        let in_use = "Whether checks are decided with a copy of the view that was not confirmed since the start";
        Ok(Self {
            rejected: factory.counter_by("view_copy_rejected_total", rejected, "reason", reasons)?,
            writes: factory.counter_by("view_copy_writes_total", writes, "result", ["ok", "failed"])?,
            bytes: factory.gauge_vec("view_copy_bytes", "Size of the copy on disk", &["service"])?,
            confirmed: factory.float_gauge_vec("view_copy_confirmed_timestamp_seconds", confirmed, &["service"])?,
            in_use: factory.gauge_vec("view_copy_in_use", in_use, &["service"])?,
        })
    }

    pub fn rejected(&self, reason: CopyRejection) {
        self.rejected.with_label_values(&[reason.as_str()]).inc();
    }

    /// Records that a copy was written. Its view was confirmed at `confirmed`.
    pub fn written(&self, service: ServiceId, bytes: u64, confirmed: Timestamp) {
        self.writes.with_label_values(&["ok"]).inc();
        let label = [service.to_string()];
        self.bytes.with_label_values(&label).set(i64::try_from(bytes).unwrap_or(i64::MAX));
        self.confirmed.with_label_values(&label).set(confirmed.as_seconds());
    }

    pub fn write_failed(&self) {
        self.writes.with_label_values(&["failed"]).inc();
    }

    pub(super) fn forget_service(&self, label: &[String; 1]) {
        // An error says that there is no such gauge.
        let _ignored = self.confirmed.remove_label_values(label);
        for gauge in [&self.bytes, &self.in_use] {
            let _ignored = gauge.remove_label_values(label);
        }
    }

    /// Sets whether the checks of a service are decided with a copy on disk.
    pub fn in_use(&self, service: ServiceId, is_in_use: bool) {
        self.in_use.with_label_values(&[service.to_string()]).set(is_in_use.into());
    }
}
