//! The metrics of the connections of a port.

use super::connections::CloseReason;
use crate::telemetry::MetricFactory;
use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec};

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
    /// Creates the metrics.
    pub fn new(factory: &MetricFactory) -> prometheus::Result<Self> {
        let max = "The largest allowed number of open connections, by port.";
        let closed = "Connections that the server closed or refused, by port and reason.";
        let accept_errors = "Failures to accept a connection, by port.";
        Ok(Self {
            open: factory.gauge_vec("connections", "Open connections, by port.", &["port"])?,
            max: factory.gauge_vec("connections_max", max, &["port"])?,
            closed: factory.counter_vec("connections_closed_total", closed, &["port", "reason"])?,
            accept_errors: factory.counter_vec("accept_errors_total", accept_errors, &["port"])?,
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
