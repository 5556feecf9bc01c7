//! The metrics of checksums that sidecars compare with those of the control plane.

use super::PREFIX;
use countersign_process::telemetry::register;
use prometheus::{IntCounterVec, Registry, opts};

/// The result of the comparison of a checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ViewCheckResult {
    /// The view has the data of the control plane.
    Ok,
    /// The view differs from the data of the control plane.
    Mismatch,
    /// The checksum is about other data than that of the view.
    Skipped,
}

impl ViewCheckResult {
    const ALL: [Self; 3] = [Self::Ok, Self::Mismatch, Self::Skipped];

    const fn label(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Mismatch => "mismatch",
            Self::Skipped => "skipped",
        }
    }
}

/// Counts compared checksums.
#[derive(Debug)]
pub struct ViewCheckMetrics(IntCounterVec);

impl ViewCheckMetrics {
    pub(super) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let opts = opts!(
            format!("{PREFIX}_view_checks_total"),
            "Checksums of the control plane that were compared with the view, by result"
        );
        let metrics = Self(register(registry, IntCounterVec::new(opts, &["result"])?)?);
        for result in ViewCheckResult::ALL {
            let _created_at_zero = metrics.0.with_label_values(&[result.label()]);
        }
        Ok(metrics)
    }

    /// A checksum was compared, or could not be compared.
    pub fn compared(&self, result: ViewCheckResult) {
        self.0.with_label_values(&[result.label()]).inc();
    }
}
