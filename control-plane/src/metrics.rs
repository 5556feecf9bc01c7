//! The Prometheus metrics of the control plane. This module depends on no other module.
//!
//! Label values are closed sets: for example, routes as declared in the router, never request paths. Possible series are
//! created with the value 0, so that rates are correct from the first event on; impossible series are not created.

mod on_collection;
mod redis;
mod store;
mod sync;
mod webhooks;

pub use on_collection::{HousekeepingStatus, PoolStatus};
pub use redis::{RedisMetrics, RedisOutcome};
pub use store::{StoreMetrics, TransactionKind, TransactionOutcome};
pub use sync::SyncMetrics;
pub use webhooks::WebhookMetrics;

use countersign_identity::{Reason, Timestamp};
use countersign_process::{
    file_reload::FileReloadMetrics,
    server::PortMetrics,
    telemetry::{MetricFactory, registry},
};
use prometheus::{Gauge, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry, core::Collector};

/// The value of a timestamp metric, in Unix seconds; 0 if there is no time.
pub fn timestamp_value(time: Option<Timestamp>) -> f64 {
    time.map_or(0.0, |time| time.duration_since(Timestamp::from_micros(0)).as_secs_f64())
}

/// The value of the label `result` for success.
pub const OK: &str = "ok";

/// The value of the label `result` for a failure without a code.
const FAILED: &str = "failed";

/// All metrics and their registry.
#[derive(Clone)]
pub struct Metrics {
    /// Exposed at `/metrics` on the admin port.
    pub registry: Registry,
    /// HTTP responses by method, route and status.
    pub http_requests: IntCounterVec,
    /// Seconds until the response, by method and route.
    pub http_seconds: HistogramVec,
    /// Refused requests, by reason.
    pub refusals: IntCounterVec,
    /// Calls of the API by result.
    pub operations: OperationMetrics,
    /// Verifications whose result was in memory.
    pub verification_cache_hits: IntCounter,
    /// Verifications that read the database.
    pub verification_cache_misses: IntCounter,
    /// Network connections to the ports of this process.
    pub ports: PortMetrics,
    /// Transactions and connections of the database.
    pub store: StoreMetrics,
    /// Requests over a rate limit, by category.
    pub rate_limited: IntCounterVec,
    /// Requests that were refused because too many are in progress.
    pub overloaded: IntCounter,
    pub webhooks: WebhookMetrics,
    /// The Redis that replicas share.
    pub redis: RedisMetrics,
    /// Sidecars and their sync streams.
    pub sync: SyncMetrics,
    /// When the TLS certificate expires, in Unix seconds.
    pub certificate_expiry: IntGauge,
    /// Files that are loaded again when they change.
    pub file_reloads: FileReloadMetrics,
    /// Live signing keys by status.
    pub signing_keys: IntGaugeVec,
    /// When the current signing key started to sign, in Unix seconds.
    pub signing_key_start: Gauge,
    jwks_fetches: IntCounterVec,
}

/// Calls of the API, each by result: [`OK`] or the error code.
#[derive(Clone)]
pub struct OperationMetrics {
    pub registrations: IntCounterVec,
    pub challenges: IntCounterVec,
    /// Logins.
    pub authentications: IntCounterVec,
    pub refreshes: IntCounterVec,
    /// Revocations of tokens by their holders.
    pub revocations: IntCounterVec,
    /// Verifications of agents' tokens by services.
    pub verifications: IntCounterVec,
    /// Roles created, changed, deleted, assigned or revoked.
    pub role_changes: IntCounterVec,
    pub feedback: IntCounterVec,
}

/// Label values that are defined in other modules.
#[derive(Default)]
pub struct LabelValues<'a> {
    /// The reasons for which requests are refused, except for those about credentials.
    pub other_reasons: &'a [&'a str],
    /// The categories of rate limits.
    pub rate_limit_categories: &'a [&'a str],
    /// The reasons for which a delivery attempt fails.
    pub delivery_failures: &'a [&'a str],
    /// The limits of sync streams.
    pub stream_limits: &'a [&'a str],
}

/// Fetches of one issuer's keys.
#[derive(Clone)]
pub struct JwksFetchMetrics {
    pub succeeded: IntCounter,
    pub failed: IntCounter,
}

/// The upper bounds of the buckets of all histograms in seconds, each twice the one before.
const BUCKETS: [f64; 15] =
    [0.000_5, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192];

impl Metrics {
    /// Creates and registers all metrics, with the given label values.
    pub fn new(labels: &LabelValues) -> prometheus::Result<Self> {
        let registry = registry("countersign", env!("CARGO_PKG_VERSION"))?;
        let factory = MetricFactory { registry: &registry, prefix: "countersign" };
        let reasons = Reason::ALL.iter().filter(|reason| occurs_in_control_plane(**reason));
        let reasons = reasons.map(|reason| reason.as_str()).chain(labels.other_reasons.iter().copied());
        let categories = labels.rate_limit_categories.iter().copied();
        let over_limit = "Requests over a rate limit, by category";
        let fetches = "Fetches of the keys of issuers of human users, by issuer and result";
        let signs_from = "When the current signing key started to sign";
        Ok(Self {
            http_requests: factory.counter_vec(
                "http_requests_total",
                "HTTP responses by method, route and status",
                &["method", "route", "status"],
            )?,
            http_seconds: factory.histogram_vec(
                "http_request_duration_seconds",
                "Seconds until the response, by method and route",
                &["method", "route"],
                &BUCKETS,
            )?,
            refusals: factory.counter_by("refusals_total", "Refused requests by reason", "reason", reasons)?,
            rate_limited: factory.counter_by("rate_limited_total", over_limit, "category", categories)?,
            overloaded: factory.counter("overloaded_total", "Requests refused because too many are in progress")?,
            operations: OperationMetrics::new(&factory)?,
            verification_cache_hits: factory
                .counter("verification_cache_hits_total", "Verifications of tokens whose result was in memory")?,
            verification_cache_misses: factory
                .counter("verification_cache_misses_total", "Verifications of tokens that read the database")?,
            ports: PortMetrics::new(&factory)?,
            store: StoreMetrics::new(&factory)?,
            webhooks: WebhookMetrics::new(&factory, labels.delivery_failures)?,
            redis: RedisMetrics::new(&factory)?,
            sync: SyncMetrics::new(&factory, labels.stream_limits)?,
            certificate_expiry: factory
                .gauge("certificate_expiry_timestamp_seconds", "When the TLS certificate expires, in Unix seconds")?,
            file_reloads: FileReloadMetrics::new(&factory)?,
            signing_keys: factory.gauge_vec("signing_keys", "Live signing keys by status", &["status"])?,
            signing_key_start: factory.timestamp_gauge("signing_key_signs_from", signs_from)?,
            jwks_fetches: factory.counter_vec("jwks_fetches_total", fetches, &["issuer", "result"])?,
            registry,
        })
    }

    /// The counters of an issuer, by its name in the settings.
    pub fn jwks_fetches(&self, issuer: &str) -> JwksFetchMetrics {
        let [succeeded, failed] = [OK, FAILED].map(|result| self.jwks_fetches.with_label_values(&[issuer, result]));
        JwksFetchMetrics { succeeded, failed }
    }

    /// The number of HTTP responses.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a counter is a whole number")]
    pub fn http_response_count(&self) -> u64 {
        let families = self.http_requests.collect();
        let series = families.iter().flat_map(prometheus::proto::MetricFamily::get_metric);
        series.map(|metric| metric.get_counter().get_value() as u64).sum()
    }
}

/// Whether the control plane can refuse a request for this reason. Some reasons occur only in the sidecar, which has rules for
/// routes and a copy of the data.
const fn occurs_in_control_plane(reason: Reason) -> bool {
    !matches!(
        reason,
        Reason::NoRole
            | Reason::RoleMissing
            | Reason::PermissionMissing
            | Reason::TokenScopeInsufficient
            | Reason::TrustTooLow
            | Reason::ViewMissing
            | Reason::ViewStale
            | Reason::ServiceUnknown
            | Reason::SyncKeyRemoved
            | Reason::SyncKeyRefused
            | Reason::RuleInvalid
            | Reason::RequestInvalid
            | Reason::Internal
            | Reason::PathAmbiguous
            | Reason::HostInvalid
            | Reason::McpRequestInvalid
            | Reason::McpNotAllowed
    )
}

impl OperationMetrics {
    fn new(factory: &MetricFactory) -> prometheus::Result<Self> {
        let counter = |name: &str, help: &str| factory.counter_by(name, help, "result", [OK]);
        Ok(Self {
            registrations: counter("registrations_total", "Registrations of agents by result")?,
            challenges: counter("challenges_total", "Requests for a challenge by result")?,
            authentications: counter("authentications_total", "Logins by result")?,
            refreshes: counter("refreshes_total", "Refreshes of sessions by result")?,
            revocations: counter("revocations_total", "Revocations of tokens by result")?,
            verifications: counter("verifications_total", "Verifications of agents' tokens by result")?,
            role_changes: counter(
                "role_changes_total",
                "Roles created, changed, deleted, assigned or revoked, by result",
            )?,
            feedback: counter("feedback_total", "Feedback about agents by result")?,
        })
    }
}
