//! The metrics of the connections of a port.

use super::connections::CloseReason;
use crate::telemetry::register;
use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry, opts};

/// The metrics of the connections of all ports of a process.
#[derive(Debug, Clone)]
pub struct PortMetrics {
    open: IntGaugeVec,
    max: IntGaugeVec,
    closed: IntCounterVec,
    accept_errors: IntCounterVec,
}

/// The metrics of the connections of one port.
#[derive(Clone)]
pub struct ConnectionMetrics {
    /// Open connections.
    pub(super) open: IntGauge,
    max: IntGauge,
    /// Failures to accept a connection.
    pub(super) accept_errors: IntCounter,
    closed: Vec<(CloseReason, IntCounter)>,
}

impl PortMetrics {
    /// Registers the metrics with names that begin with `prefix`.
    pub fn register(registry: &Registry, prefix: &str) -> prometheus::Result<Self> {
        let name = |rest: &str| format!("{prefix}_{rest}");
        let open = opts!(name("connections"), "Open connections, by port.");
        let max = opts!(name("connections_max"), "The largest allowed number of open connections, by port.");
        let closed = opts!(
            name("connections_closed_total"),
            "Connections that the server closed or refused, by port and reason."
        );
        let accept_errors = opts!(name("accept_errors_total"), "Failures to accept a connection, by port.");
        Ok(Self {
            open: register(registry, IntGaugeVec::new(open, &["port"])?)?,
            max: register(registry, IntGaugeVec::new(max, &["port"])?)?,
            closed: register(registry, IntCounterVec::new(closed, &["port", "reason"])?)?,
            accept_errors: register(registry, IntCounterVec::new(accept_errors, &["port"])?)?,
        })
    }

    /// The metrics of one port.
    pub fn of_port(&self, port: &'static str) -> ConnectionMetrics {
        let closed = |reason: CloseReason| self.closed.with_label_values(&[port, reason.as_str()]);
        ConnectionMetrics {
            open: self.open.with_label_values(&[port]),
            max: self.max.with_label_values(&[port]),
            accept_errors: self.accept_errors.with_label_values(&[port]),
            closed: CloseReason::ALL.iter().map(|reason| (*reason, closed(*reason))).collect(),
        }
    }
}

impl ConnectionMetrics {
    /// Sets the number of open connections.
    pub(super) fn set_open(&self, open: usize) {
        self.open.set(i64::try_from(open).unwrap_or(i64::MAX));
    }

    /// Sets the largest allowed number of open connections.
    pub(super) fn set_max(&self, max: usize) {
        self.max.set(i64::try_from(max).unwrap_or(i64::MAX));
    }

    /// Counts a connection that the server closed or refused.
    pub(super) fn closed(&self, reason: CloseReason) {
        if let Some((_, counter)) = self.closed.iter().find(|(of, _)| *of == reason) {
            counter.inc();
        }
    }
}
