//! The figures of the control plane. A leaf: everybody may count, nobody is imported.
//!
//! Labels are closed sets: routes as written in the router, never paths as sent.

use countersign_identity::Reason;
use countersign_process::telemetry::{register, registry};
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, IntGauge, Registry, core::Collector, opts};

/// All metrics, and the registry that the admin port shows.
#[derive(Clone)]
pub struct Metrics {
    /// What the admin port shows.
    pub registry: Registry,
    /// HTTP answers by method, route and status.
    pub http_requests: IntCounterVec,
    /// Seconds until the answer, by route.
    pub http_seconds: HistogramVec,
    /// Refusals by reason.
    pub refusals: IntCounterVec,
    /// Sidecars that follow now.
    pub sync_streams: IntGauge,
    /// The newest revision that was sent to followers.
    pub feed_revision: IntGauge,
}

impl Metrics {
    /// Registers all of them; children with closed labels start at zero.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = registry("countersign", env!("CARGO_PKG_VERSION"))?;
        let requests = opts!("countersign_http_requests_total", "HTTP answers by method, route and status");
        let seconds =
            HistogramOpts::new("countersign_http_request_duration_seconds", "Seconds until the answer, by route");
        let refusals = opts!("countersign_refusals_total", "Refusals by reason");
        let streams = IntGauge::new("countersign_sync_streams", "Sidecars that follow now")?;
        let revision = IntGauge::new("countersign_feed_revision", "Newest revision sent to followers")?;
        let metrics = Self {
            http_requests: register(&registry, IntCounterVec::new(requests, &["method", "route", "status"])?)?,
            http_seconds: register(&registry, HistogramVec::new(seconds, &["route"])?)?,
            refusals: register(&registry, IntCounterVec::new(refusals, &["reason"])?)?,
            sync_streams: register(&registry, streams)?,
            feed_revision: register(&registry, revision)?,
            registry,
        };
        for reason in Reason::ALL {
            metrics.refusals.with_label_values(&[reason.as_str()]);
        }
        Ok(metrics)
    }

    /// HTTP requests that were answered, all together.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a counter is a whole number")]
    pub fn requests_answered(&self) -> u64 {
        let counted = self.http_requests.collect();
        let each = counted.iter().flat_map(prometheus::proto::MetricFamily::get_metric);
        each.map(|metric| metric.get_counter().get_value() as u64).sum()
    }
}
