//! The metrics of the addresses of the control plane that sync streams use.

use super::service_label;
use countersign_identity::ServiceId;
use countersign_process::{label_values, telemetry::MetricFactory};
use prometheus::{IntCounterVec, IntGaugeVec};

label_values! {
    /// Why a sync stream moved on to the next address.
    pub enum FailoverReason {
        /// The address cannot be connected to.
        Connect = "connect",
        /// The address does not answer pings.
        Pings = "pings",
        /// The control plane ended the stream.
        Ended = "ended",
        /// The control plane refuses the API key, or has too many streams.
        Refused = "refused",
        /// The address serves older data than the view, or the data of another deployment.
        Data = "data",
        /// A message was invalid, or the protocol versions differ.
        Invalid = "invalid",
    }
}

#[derive(Debug)]
pub struct AddressMetrics {
    address: IntGaugeVec,
    failovers: IntCounterVec,
}

impl AddressMetrics {
    pub(super) fn new(factory: &MetricFactory) -> Result<Self, prometheus::Error> {
        let address = "Index in sync.urls of the address that the last opened sync stream uses";
        let failovers = "Sync streams that moved on to the next address of sync.urls, by the reason";
        Ok(Self {
            address: factory.gauge_vec("stream_address", address, &["service"])?,
            failovers: factory.counter_vec("stream_failovers_total", failovers, &["service", "reason"])?,
        })
    }

    /// Creates the counters of a service at zero.
    pub(super) fn init_failovers(&self, service: &str) {
        for reason in FailoverReason::ALL {
            let _created_at_zero = self.failovers.with_label_values(&[service, reason.as_str()]);
        }
    }

    pub fn in_use(&self, service: ServiceId, index: usize) {
        let index = i64::try_from(index).unwrap_or(i64::MAX);
        self.address.with_label_values(&[service.to_string()]).set(index);
    }

    pub(super) fn forget_service(&self, label: &[String; 1]) {
        // An error says that there is no such gauge.
        let _ignored = self.address.remove_label_values(label);
    }

    pub fn failed_over(&self, service: Option<ServiceId>, reason: FailoverReason) {
        self.failovers.with_label_values(&[&*service_label(service), reason.as_str()]).inc();
    }
}
