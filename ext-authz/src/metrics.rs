//! The figures of this authorizer, prefix `countersign_authz_`.
//!
//! Neighbours: `check` and `sync` count here, the admin port shows it. The rule of the room: label sets
//! are closed, no agent stands in a label, and what is counted on every check is looked up once, when
//! its service becomes known.

use arc_swap::ArcSwap;
use countersign_identity::{Reason, Revision, ServiceId, Timestamp};
use countersign_process::telemetry::{register, registry};
use prometheus::{GaugeVec, Histogram, IntCounter, IntCounterVec, IntGaugeVec, Registry, histogram_opts, opts};
use std::{collections::HashMap, sync::Arc, time::Duration};

const PREFIX: &str = "countersign_authz";

/// The label of checks whose service is not known.
const NO_SERVICE: &str = "none";

/// Seconds, from ten microseconds.
const BUCKETS: [f64; 13] =
    [0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.1, 1.0];

/// The outcome of a check, as it is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Let in with an identity.
    Verified,
    /// Let in without one.
    Anonymous,
    /// Not let in.
    Refused(Reason),
}

impl Verdict {
    const fn labels(self) -> [&'static str; 2] {
        match self {
            Self::Verified => ["allow", "verified"],
            Self::Anonymous => ["allow", "anonymous"],
            Self::Refused(reason) => ["deny", reason.as_str()],
        }
    }

    /// Every verdict that can come of a check at a service that is known.
    fn at_a_service() -> impl Iterator<Item = Self> {
        const REASONS: [Reason; 20] = [
            Reason::TokenMissing,
            Reason::TokenRepeated,
            Reason::TokenMalformed,
            Reason::TokenKeyUnknown,
            Reason::TokenSignatureInvalid,
            Reason::TokenClaimsInvalid,
            Reason::TokenNotYetValid,
            Reason::TokenExpired,
            Reason::TokenAudienceMismatch,
            Reason::TokenUnbound,
            Reason::TokenSuperseded,
            Reason::TokenRevoked,
            Reason::AgentSuspended,
            Reason::AgentRevoked,
            Reason::NoRole,
            Reason::RoleMissing,
            Reason::PermissionMissing,
            Reason::TrustTooLow,
            Reason::ViewMissing,
            Reason::ViewStale,
        ];
        [Self::Verified, Self::Anonymous].into_iter().chain(REASONS.map(Self::Refused))
    }

    /// Every verdict that can come before the service is known.
    fn without_service() -> impl Iterator<Item = Self> {
        let reasons = [
            Reason::ViewMissing,
            Reason::ServiceUnknown,
            Reason::RuleInvalid,
            Reason::RequestInvalid,
            Reason::Internal,
        ];
        reasons.map(Self::Refused).into_iter()
    }
}

type Counters = HashMap<Verdict, IntCounter>;

/// All figures.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    checks: IntCounterVec,
    resolved: ArcSwap<HashMap<Option<ServiceId>, Arc<Counters>>>,
    duration: Histogram,
    cache_hits: IntCounter,
    cache_misses: IntCounter,
    connected: IntGaugeVec,
    reconnects: IntCounter,
    revision: IntGaugeVec,
    confirmed: GaugeVec,
    agents: IntGaugeVec,
}

impl Metrics {
    /// All figures at zero.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = registry(PREFIX, env!("CARGO_PKG_VERSION"))?;
        let named = |name: &str| format!("{PREFIX}_{name}");
        let counter = |name, help| IntCounter::new(named(name), help).and_then(|it| register(&registry, it));
        let gauge = |name, help| {
            IntGaugeVec::new(opts!(named(name), help), &["service"]).and_then(|it| register(&registry, it))
        };
        let checks = opts!(named("checks_total"), "Checks by verdict");
        let duration = histogram_opts!(named("check_duration_seconds"), "Time to judge a check", BUCKETS.to_vec());
        let confirmed = opts!(named("view_confirmed_timestamp_seconds"), "When the view was last confirmed");
        let metrics = Self {
            checks: register(&registry, IntCounterVec::new(checks, &["service", "decision", "reason"])?)?,
            resolved: ArcSwap::default(),
            duration: register(&registry, Histogram::with_opts(duration)?)?,
            cache_hits: counter("token_cache_hits_total", "Tokens whose signature was verified before")?,
            cache_misses: counter("token_cache_misses_total", "Tokens whose signature had to be verified")?,
            connected: gauge(
                "stream_connected",
                "Streams of the service that are followed: one for each of its API keys",
            )?,
            reconnects: counter("stream_reconnects_total", "Streams that ended and were begun again")?,
            revision: gauge("view_revision", "The revision up to which everything is known")?,
            confirmed: register(&registry, GaugeVec::new(confirmed, &["service"])?)?,
            agents: gauge("view_agents", "Agents remembered because they changed lately")?,
            registry,
        };
        metrics.resolve(None, Verdict::without_service());
        Ok(metrics)
    }

    fn resolve(&self, service: Option<ServiceId>, verdicts: impl Iterator<Item = Verdict>) {
        let label = service.map_or_else(|| NO_SERVICE.to_owned(), |service| service.to_string());
        let counter = |verdict: Verdict| {
            let [decision, reason] = verdict.labels();
            (verdict, self.checks.with_label_values(&[label.as_str(), decision, reason]))
        };
        let counters: Arc<Counters> = Arc::new(verdicts.map(counter).collect());
        self.resolved.rcu(|known| {
            let mut known = HashMap::clone(known);
            known.insert(service, Arc::clone(&counters));
            known
        });
    }

    /// A service is known: all that is said of it begins at zero.
    pub fn service_known(&self, service: ServiceId) {
        if !self.resolved.load().contains_key(&Some(service)) {
            self.resolve(Some(service), Verdict::at_a_service());
        }
    }

    /// A check was answered.
    pub fn checked(&self, service: Option<ServiceId>, verdict: Verdict, took: Duration) {
        self.duration.observe(took.as_secs_f64());
        match self.resolved.load().get(&service).and_then(|counters| counters.get(&verdict)) {
            Some(counter) => counter.inc(),
            None => self.checks.with_label_values(&unresolved(service, verdict)).inc(),
        }
    }

    /// A stream of this service is followed.
    pub fn stream_begun(&self, service: ServiceId) {
        self.connected.with_label_values(&[service.to_string()]).inc();
    }

    /// A stream of this service is followed no more.
    pub fn stream_ended(&self, service: ServiceId) {
        self.connected.with_label_values(&[service.to_string()]).dec();
    }

    /// A stream ended.
    pub fn reconnecting(&self) {
        self.reconnects.inc();
    }

    /// A view was published.
    pub fn published(&self, service: ServiceId, revision: Revision, agents: usize) {
        let label = [service.to_string()];
        self.revision.with_label_values(&label).set(revision.number());
        self.agents.with_label_values(&label).set(i64::try_from(agents).unwrap_or(i64::MAX));
    }

    /// A view was confirmed, by a question sent at this instant.
    #[expect(clippy::cast_precision_loss, reason = "a gauge is a float; microseconds survive until the year 2255")]
    pub fn confirmed(&self, service: ServiceId, asked_at: Timestamp) {
        self.confirmed.with_label_values(&[service.to_string()]).set(asked_at.micros() as f64 / 1e6);
    }

    /// Counts tokens found in the cache.
    pub fn cache_hits(&self) -> IntCounter {
        self.cache_hits.clone()
    }

    /// Counts tokens not found in the cache.
    pub fn cache_misses(&self) -> IntCounter {
        self.cache_misses.clone()
    }

    /// What the admin port shows.
    pub fn registry(&self) -> Registry {
        self.registry.clone()
    }
}

fn unresolved(service: Option<ServiceId>, verdict: Verdict) -> [String; 3] {
    let [decision, reason] = verdict.labels();
    let service = service.map_or_else(|| NO_SERVICE.to_owned(), |service| service.to_string());
    [service, decision.to_owned(), reason.to_owned()]
}
