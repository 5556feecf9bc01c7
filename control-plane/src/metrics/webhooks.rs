//! Metrics of the delivery of events to webhooks.

use super::{BUCKETS, MetricFactory, OK};
use prometheus::{Gauge, Histogram, IntCounterVec, IntGauge};

#[derive(Clone)]
pub struct WebhookMetrics {
    /// Delivery attempts by result: [`OK`] or the reason of the failure.
    pub attempts: IntCounterVec,
    /// Finished deliveries by result.
    pub deliveries: IntCounterVec,
    /// Duration of an attempt, in seconds.
    pub seconds: Histogram,
    /// Deliveries that are not finished.
    pub pending: IntGauge,
    /// When the oldest due delivery became due, in Unix seconds; 0 if none is due.
    pub oldest_due: Gauge,
}

impl WebhookMetrics {
    const DELIVERED: &str = "delivered";
    const DEAD: &str = "dead";

    /// `failures`: the values of the label `result` for failed attempts.
    pub(super) fn new(factory: &MetricFactory, failures: &[&str]) -> prometheus::Result<Self> {
        let attempt_results = [OK].into_iter().chain(failures.iter().copied());
        let attempts =
            factory.counter_by("webhook_attempts_total", "Delivery attempts by result", "result", attempt_results)?;
        let results = [Self::DELIVERED, Self::DEAD];
        let deliveries =
            factory.counter_by("webhook_deliveries_total", "Finished deliveries by result", "result", results)?;
        let help = "Seconds of a delivery attempt";
        let seconds = factory.histogram_vec("webhook_attempt_duration_seconds", help, &[], &BUCKETS)?;
        let oldest_due = "When the oldest due delivery became due, in Unix seconds; 0 if none is due";
        Ok(Self {
            attempts,
            deliveries,
            seconds: seconds.with_label_values::<&str>(&[]),
            pending: factory.gauge("webhook_deliveries_pending", "Deliveries that are not finished")?,
            oldest_due: factory.timestamp_gauge("webhook_oldest_due", oldest_due)?,
        })
    }

    /// Counts an attempt, and the delivery if the attempt was its last.
    pub fn record_attempt(&self, failure: Option<&str>, is_finished: bool) {
        self.attempts.with_label_values(&[failure.unwrap_or(OK)]).inc();
        if is_finished {
            let result = if failure.is_none() { Self::DELIVERED } else { Self::DEAD };
            self.deliveries.with_label_values(&[result]).inc();
        }
    }
}
