//! Metrics of Redis, whose series exist only if a Redis is configured.

use super::MetricFactory;
use countersign_process::label_values;
use prometheus::{IntCounterVec, IntGaugeVec};

/// Availability of Redis and requests to it.
#[derive(Clone)]
pub struct RedisMetrics {
    up: IntGaugeVec,
    operations: IntCounterVec,
}

label_values! {
    /// The result of a request to Redis.
    pub enum RedisOutcome {
        /// Redis returned a reply.
        Succeeded = "ok",
        /// Redis returned no reply in time.
        TimedOut = "late",
        /// Redis returned an error, or the connection broke.
        Failed = "failed",
        /// The request was not sent, because there is no connection.
        NotSent = "not_asked",
    }
}

impl RedisMetrics {
    pub(super) fn new(factory: &MetricFactory) -> prometheus::Result<Self> {
        let up = factory.gauge_vec("redis_up", "1 if Redis is connected, else 0; by kind", &["kind"])?;
        let operations = factory.counter_vec("redis_operations_total", "Requests to Redis by result", &["result"])?;
        Ok(Self { up, operations })
    }

    /// Creates the series for a Redis of the kind `kind`.
    pub fn initialize(&self, kind: &str) {
        self.set_up(kind, false);
        for outcome in RedisOutcome::ALL {
            self.operations.with_label_values(&[outcome.as_str()]);
        }
    }

    /// Sets whether Redis is connected.
    pub fn set_up(&self, kind: &str, is_up: bool) {
        self.up.with_label_values(&[kind]).set(is_up.into());
    }

    /// Counts a request.
    pub fn record(&self, outcome: RedisOutcome) {
        self.operations.with_label_values(&[outcome.as_str()]).inc();
    }
}
