//! The metrics of the sidecar, with the prefix `countersign_authz_`.
//!
//! `check` and `sync` record them, and the admin port exposes them. Invariants: label values come from closed lists, and no
//! label contains an agent. The time series of checks are looked up once, when the service becomes known, because every check
//! updates them.

mod addresses;
mod copies;

use arc_swap::ArcSwap;
use countersign_identity::{Reason, Revision, ServiceId, Timestamp};
use countersign_process::{
    file_reload::FileReloadMetrics,
    server::PortMetrics,
    telemetry::{MetricFactory, registry},
};
use prometheus::{GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry};
use std::{collections::HashMap, sync::Arc, time::Duration};

pub use addresses::{AddressMetrics, FailoverReason};
pub use copies::{CopyMetrics, CopyRejection};

const PREFIX: &str = "countersign_authz";

/// The value of the label `service` while the service of a check or an API key is unknown.
const NO_SERVICE: &str = "none";

/// The upper bounds of histogram buckets in seconds; the lowest bound is ten microseconds.
const BUCKETS: [f64; 13] =
    [0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.1, 1.0];

/// The outcome of a check, as the metrics count it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// The request is allowed with an identity.
    Verified,
    /// The request is allowed without an identity, or it is for public metadata.
    Anonymous,
    /// The request is allowed without an identity, although a rule that is a dry run refuses it.
    DryRun(Reason),
    Denied(Reason),
}

/// Whether a check can be denied for this reason while its service is known, or while its service is unknown. The `match` names
/// every reason, so a new reason does not compile until its case is decided.
const fn occurs(reason: Reason, service_is_known: bool) -> bool {
    match reason {
        // A view that the control plane has not confirmed yet counts as missing, although its service is known. The service of a refused
        // API key is known if the key had a view.
        Reason::ViewMissing | Reason::SyncKeyRefused => true,
        Reason::TokenMissing
        | Reason::TokenRepeated
        | Reason::TokenMalformed
        | Reason::TokenKeyUnknown
        | Reason::TokenSignatureInvalid
        | Reason::TokenClaimsInvalid
        | Reason::TokenNotYetValid
        | Reason::TokenExpired
        | Reason::TokenAudienceMismatch
        | Reason::TokenUnbound
        | Reason::TokenSuperseded
        | Reason::TokenRevoked
        | Reason::AgentSuspended
        | Reason::AgentRevoked
        | Reason::NoRole
        | Reason::RoleMissing
        | Reason::PermissionMissing
        | Reason::TokenScopeInsufficient
        | Reason::McpNotAllowed
        | Reason::TrustTooLow
        | Reason::ViewStale => service_is_known,
        Reason::ServiceUnknown
        | Reason::SyncKeyRemoved
        | Reason::PathAmbiguous
        | Reason::HostInvalid
        | Reason::McpRequestInvalid
        | Reason::RuleInvalid
        | Reason::RequestInvalid
        | Reason::Internal => !service_is_known,
        // Only the API of the control plane refuses requests for these reasons.
        Reason::ServiceKeyMissing
        | Reason::ServiceKeyInvalid
        | Reason::HumanTokenMissing
        | Reason::HumanTokenInvalid
        | Reason::HumanTokenExpired
        | Reason::HumanIssuerUnavailable
        | Reason::CredentialsMalformed
        | Reason::ChallengeInvalid
        | Reason::ChallengeExpired
        | Reason::ChallengeUsed
        | Reason::AssertionInvalid
        | Reason::AssertionExpired
        | Reason::AssertionUsed
        | Reason::RefreshInvalid
        | Reason::RefreshExpired
        | Reason::RefreshReused
        | Reason::RefreshRevoked
        | Reason::NotYours
        | Reason::ScopeInsufficient
        | Reason::AdminRequired => false,
    }
}

/// Whether a dry run can allow a request that is refused for this reason. The other reasons are errors, which no rule decides.
const fn occurs_in_dry_run(reason: Reason) -> bool {
    !matches!(reason, Reason::RuleInvalid | Reason::RequestInvalid | Reason::Internal)
}

impl Verdict {
    const fn labels(self) -> [&'static str; 2] {
        match self {
            Self::Verified => ["allow", "verified"],
            Self::Anonymous => ["allow", "anonymous"],
            Self::DryRun(_) => ["allow", "dry_run"],
            Self::Denied(reason) => ["deny", reason.as_str()],
        }
    }

    /// All verdicts that are possible for a known or an unknown service. Only possible verdicts have a time series.
    fn possible(service: Option<ServiceId>) -> impl Iterator<Item = Self> {
        let service_is_known = service.is_some();
        let allowed = service_is_known.then_some([Self::Verified, Self::Anonymous]);
        let reasons = Reason::ALL.iter().copied().filter(move |reason| occurs(*reason, service_is_known));
        let dry_runs = reasons.clone().filter(|reason| occurs_in_dry_run(*reason)).map(Self::DryRun);
        allowed.into_iter().flatten().chain(dry_runs).chain(reasons.map(Self::Denied))
    }
}

/// The time series that every check updates.
#[derive(Debug)]
struct CheckSeries {
    /// The counters of each verdict: two for a dry run, one for the others.
    verdicts: HashMap<Verdict, Vec<IntCounter>>,
    duration: Histogram,
}

#[derive(Debug)]
pub struct Metrics {
    pub registry: Registry,
    pub ports: PortMetrics,
    pub addresses: AddressMetrics,
    pub copies: CopyMetrics,
    pub file_reloads: FileReloadMetrics,
    pub cache_hits: IntCounter,
    pub cache_misses: IntCounter,
    /// Counts the checks that are refused because unfinished checks take too much memory.
    pub overloaded: IntCounter,
    checks: IntCounterVec,
    dry_run_denials: IntCounterVec,
    rules: IntGauge,
    check_duration: HistogramVec,
    check_series: ArcSwap<HashMap<Option<ServiceId>, Arc<CheckSeries>>>,
    stream_connected: IntGaugeVec,
    stream_reconnects: IntCounterVec,
    stream_connect_failures: IntCounterVec,
    view_revision: IntGaugeVec,
    view_confirmed: GaugeVec,
    view_agents: IntGaugeVec,
    clock_offset: GaugeVec,
}

impl Metrics {
    /// Registers the expiry of the TLS certificate. The metric exists only if the port for checks has a certificate, because its
    /// alert would take 0 for an expired one.
    pub fn certificate_expiry(&self) -> Result<IntGauge, prometheus::Error> {
        let factory = MetricFactory { registry: &self.registry, prefix: PREFIX };
        factory.gauge("certificate_expiry_timestamp_seconds", "When the TLS certificate expires, in Unix seconds")
    }

    /// Registers all metrics, with the time series that exist before a service is known.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = registry(PREFIX, env!("CARGO_PKG_VERSION"))?;
        let factory = MetricFactory { registry: &registry, prefix: PREFIX };
        let service = ["service"];
        let overloaded = "Checks that were refused because unfinished checks need too much memory";
        let dry_run_denials = "Checks that were allowed although a rule that is a dry run refuses them";
        let connected = "Connected sync streams, one for each API key of the service";
        let reconnects = "Established sync streams that ended and are opened again";
        let connect_failures = "Attempts to open a sync stream that failed";
        let confirmed = "When the view was last confirmed, in Unix seconds";
        let clock_offset = "Wall clock of the sidecar minus the clock of the control plane, in seconds";
        let metrics = Self {
            ports: PortMetrics::new(&factory)?,
            checks: factory.counter_vec("checks_total", "Checks by verdict", &["service", "decision", "reason"])?,
            dry_run_denials: factory.counter_vec("dry_run_denials_total", dry_run_denials, &["service", "reason"])?,
            rules: factory.gauge("rules", "Rules of the rules file in use")?,
            check_duration: factory.histogram_vec(
                "check_duration_seconds",
                "Duration of a check",
                &service,
                &BUCKETS,
            )?,
            check_series: ArcSwap::default(),
            cache_hits: factory.counter("token_cache_hits_total", "Tokens whose signature was already verified")?,
            cache_misses: factory.counter("token_cache_misses_total", "Tokens whose signature had to be verified")?,
            overloaded: factory.counter("overloaded_total", overloaded)?,
            stream_connected: factory.gauge_vec("stream_connected", connected, &service)?,
            stream_reconnects: factory.counter_vec("stream_reconnects_total", reconnects, &service)?,
            stream_connect_failures: factory.counter_vec(
                "stream_connect_failures_total",
                connect_failures,
                &service,
            )?,
            addresses: AddressMetrics::new(&factory)?,
            view_revision: factory.gauge_vec(
                "view_revision",
                "The view includes all changes up to this revision",
                &service,
            )?,
            view_confirmed: factory.float_gauge_vec("view_confirmed_timestamp_seconds", confirmed, &service)?,
            view_agents: factory.gauge_vec("view_agents", "Agents in the view: those with recent changes", &service)?,
            clock_offset: factory.float_gauge_vec("clock_offset_seconds", clock_offset, &service)?,
            copies: CopyMetrics::new(&factory)?,
            file_reloads: FileReloadMetrics::new(&factory)?,
            registry,
        };
        metrics.add_check_series(None);
        metrics.addresses.init_failovers(NO_SERVICE);
        let _created_at_zero = metrics.stream_connect_failures.with_label_values(&[NO_SERVICE]);
        Ok(metrics)
    }

    fn add_check_series(&self, service: Option<ServiceId>) {
        let label = service_label(service);
        let verdicts = Verdict::possible(service).map(|verdict| (verdict, self.counters(&label, verdict))).collect();
        let series = Arc::new(CheckSeries { verdicts, duration: self.check_duration.with_label_values(&[&label]) });
        self.check_series.rcu(|all| {
            let mut all = HashMap::clone(all);
            all.insert(service, Arc::clone(&series));
            all
        });
    }

    fn counters(&self, service: &str, verdict: Verdict) -> Vec<IntCounter> {
        let [decision, reason] = verdict.labels();
        let mut counters = vec![self.checks.with_label_values(&[service, decision, reason])];
        if let Verdict::DryRun(reason) = verdict {
            counters.push(self.dry_run_denials.with_label_values(&[service, reason.as_str()]));
        }
        counters
    }

    /// Creates all counters of a service at zero, so that rates are right from the first event.
    pub fn init_service(&self, service: ServiceId) {
        if !self.check_series.load().contains_key(&Some(service)) {
            self.add_check_series(Some(service));
            let label = [service.to_string()];
            let _created_at_zero = self.stream_reconnects.with_label_values(&label);
            let _created_at_zero = self.stream_connect_failures.with_label_values(&label);
            self.addresses.init_failovers(&label[0]);
        }
    }

    pub fn record_check(&self, service: Option<ServiceId>, verdict: Verdict, duration: Duration) {
        let all = self.check_series.load();
        let series = all.get(&service);
        if let Some(counters) = series.and_then(|series| series.verdicts.get(&verdict)) {
            counters.iter().for_each(IntCounter::inc);
        } else {
            // A verdict that `occurs` does not expect is counted nevertheless.
            self.counters(&service_label(service), verdict).iter().for_each(IntCounter::inc);
        }
        if let Some(series) = series {
            series.duration.observe(duration.as_secs_f64());
        }
    }

    /// Records that a sync stream delivered its first view.
    pub fn stream_opened(&self, service: ServiceId) {
        self.stream_connected.with_label_values(&[service.to_string()]).inc();
    }

    pub fn stream_lost(&self, service: ServiceId) {
        let label = [service.to_string()];
        self.stream_connected.with_label_values(&label).dec();
        self.stream_reconnects.with_label_values(&label).inc();
    }

    /// Records that the sidecar has ended a sync stream itself.
    pub fn stream_closed(&self, service: ServiceId) {
        self.stream_connected.with_label_values(&[service.to_string()]).dec();
    }

    /// Removes the gauges of a service whose last API key was removed. Its counters stay.
    pub fn forget_service(&self, service: ServiceId) {
        let label = [service.to_string()];
        for gauge in [&self.stream_connected, &self.view_revision, &self.view_agents] {
            // An error says that there is no such gauge.
            let _ignored = gauge.remove_label_values(&label);
        }
        for gauge in [&self.view_confirmed, &self.clock_offset] {
            let _ignored = gauge.remove_label_values(&label);
        }
        self.addresses.forget_service(&label);
        self.copies.forget_service(&label);
    }

    /// Records that a sync stream could not be opened. The service of an API key is unknown until its first data arrives.
    pub fn connect_failed(&self, service: Option<ServiceId>) {
        self.stream_connect_failures.with_label_values(&[service_label(service)]).inc();
    }

    pub fn view_published(&self, service: ServiceId, revision: Revision, agents: usize) {
        let label = [service.to_string()];
        self.view_revision.with_label_values(&label).set(revision.number());
        self.view_agents.with_label_values(&label).set(i64::try_from(agents).unwrap_or(i64::MAX));
    }

    /// Records that the answer to the ping that was sent at `ping_sent_at` confirmed the view.
    pub fn view_confirmed(&self, service: ServiceId, ping_sent_at: Timestamp) {
        self.view_confirmed.with_label_values(&[service.to_string()]).set(ping_sent_at.as_seconds());
    }

    /// Records by how many microseconds the sidecar's wall clock is ahead of the control plane's.
    #[expect(clippy::cast_precision_loss, reason = "gauges are floats")]
    pub fn clock_offset(&self, service: ServiceId, micros: i64) {
        self.clock_offset.with_label_values(&[service.to_string()]).set(micros as f64 / 1e6);
    }

    pub fn rules_loaded(&self, count: usize) {
        self.rules.set(i64::try_from(count).unwrap_or(i64::MAX));
    }
}

fn service_label(service: Option<ServiceId>) -> String {
    service.map_or_else(|| NO_SERVICE.to_owned(), |service| service.to_string())
}

#[cfg(test)]
mod tests;
