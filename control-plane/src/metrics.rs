//! The figures of the control plane. A leaf: everybody may count, nobody is imported.
//!
//! Labels are closed sets: routes as written in the router, never paths as sent. Children start at zero, so that a
//! rate is right from the first time something happens.

use countersign_identity::Reason;
use countersign_process::telemetry::{register, registry};
use prometheus::{
    Gauge, Histogram, HistogramOpts, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Registry, core::Collector,
    exponential_buckets, opts,
};

/// The result of what was done.
pub const OK: &str = "ok";

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
    /// What was asked for, and what came of it.
    pub operations: Operations,
    /// Transactions.
    pub store: StoreMetrics,
    /// Requests refused for being too many, by category of limit.
    pub rate_limited: IntCounterVec,
    /// Events on their way to webhooks.
    pub webhooks: WebhookMetrics,
    /// Where replicas count together.
    pub redis: RedisMetrics,
    /// Sidecars that follow now.
    pub sync_streams: IntGauge,
    /// The newest revision that was sent to followers.
    pub feed_revision: IntGauge,
    /// Seconds from a change until a follower was sent it.
    pub propagation: Histogram,
    /// When the TLS certificate expires, in Unix seconds.
    pub certificate_expiry: IntGauge,
    /// Signing keys whose tokens are believed, by status.
    pub signing_keys: IntGaugeVec,
    /// Since when the key signs that signs now, in Unix seconds.
    pub signing_key_since: Gauge,
}

/// What was asked for, each by result: [`OK`], or the code of the error.
#[derive(Clone)]
pub struct Operations {
    /// Agents that registered.
    pub registrations: IntCounterVec,
    /// Challenges.
    pub challenges: IntCounterVec,
    /// Logins.
    pub authentications: IntCounterVec,
    /// Logins that went on.
    pub refreshes: IntCounterVec,
    /// Tokens that were revoked by who had them.
    pub revocations: IntCounterVec,
    /// Tokens that services asked about.
    pub verifications: IntCounterVec,
    /// Roles that were made, changed, deleted, given or taken away.
    pub role_changes: IntCounterVec,
    /// What services said of agents.
    pub feedback: IntCounterVec,
}

/// Events on their way to webhooks.
#[derive(Clone)]
pub struct WebhookMetrics {
    /// Tries by result: [`OK`], or why they failed.
    pub attempts: IntCounterVec,
    /// Deliveries that ended, by result.
    pub deliveries: IntCounterVec,
    /// Seconds of a try.
    pub seconds: Histogram,
    /// Deliveries that are not made yet.
    pub pending: IntGauge,
    /// Since when the oldest waits that could be made, in Unix seconds; 0 if none does.
    pub oldest_due: Gauge,
}

/// Transactions, by backend and kind.
#[derive(Clone)]
pub struct StoreMetrics {
    /// By result.
    pub transactions: IntCounterVec,
    /// Seconds from the wait for a connection to the end.
    pub seconds: HistogramVec,
}

/// How a transaction may end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// It read what it wanted.
    Read,
    /// It changed what it wanted.
    Committed,
    /// It decided against it, or failed within.
    RolledBack,
    /// Another was in the way, and it is run again.
    Rerun,
    /// It could not begin.
    Failed,
}

impl Ended {
    /// The label `result`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Committed => "committed",
            Self::RolledBack => "rolled_back",
            Self::Rerun => "rerun",
            Self::Failed => "failed",
        }
    }

    /// How a transaction of this kind may end.
    const fn of(kind: Kind) -> &'static [Self] {
        match kind {
            Kind::Read => &[Self::Read, Self::Failed],
            Kind::Write => &[Self::Committed, Self::RolledBack, Self::Rerun, Self::Failed],
        }
    }
}

/// What a transaction is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Reading.
    Read,
    /// Writing.
    Write,
}

impl Kind {
    /// The label `kind`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// The labels that others know.
pub struct Labels<'a> {
    /// The codes that errors may have.
    pub codes: &'a [&'a str],
    /// The categories of limits.
    pub limits: &'a [&'a str],
    /// Why an event may not reach a webhook.
    pub failures: &'a [&'a str],
}

/// Makes metrics and registers them.
struct Maker<'a>(&'a Registry);

type Made<T> = Result<T, prometheus::Error>;

impl Maker<'_> {
    fn count(&self, name: &str, help: &str, labels: &[&str]) -> Made<IntCounterVec> {
        register(self.0, IntCounterVec::new(opts!(format!("countersign_{name}"), help), labels)?)
    }

    fn count_results(&self, name: &str, help: &str, codes: &[&str]) -> Made<IntCounterVec> {
        let counter = self.count(name, help, &["result"])?;
        for result in [OK].iter().chain(codes) {
            counter.with_label_values(&[*result]);
        }
        Ok(counter)
    }

    fn gauge(&self, name: &str, help: &str) -> Made<IntGauge> {
        register(self.0, IntGauge::new(format!("countersign_{name}"), help)?)
    }

    fn instant(&self, name: &str, help: &str) -> Made<Gauge> {
        register(self.0, Gauge::new(format!("countersign_{name}_timestamp_seconds"), help)?)
    }

    fn count_now(&self, name: &str, help: &str, labels: &[&str]) -> Made<IntGaugeVec> {
        register(self.0, IntGaugeVec::new(opts!(format!("countersign_{name}"), help), labels)?)
    }

    fn seconds(&self, name: &str, help: &str, labels: &[&str]) -> Made<HistogramVec> {
        // From half a millisecond to eight seconds.
        let buckets = exponential_buckets(0.000_5, 2.0, 15)?;
        let options = HistogramOpts::new(format!("countersign_{name}"), help).buckets(buckets);
        register(self.0, HistogramVec::new(options, labels)?)
    }
}

impl Metrics {
    /// Registers all of them, for these closed sets of labels.
    pub fn new(labels: &Labels) -> Made<Self> {
        let Labels { codes, limits, failures } = labels;
        let registry = registry("countersign", env!("CARGO_PKG_VERSION"))?;
        let make = Maker(&registry);
        let refusals = make.count("refusals_total", "Refusals by reason", &["reason"])?;
        for reason in Reason::ALL {
            refusals.with_label_values(&[reason.as_str()]);
        }
        let limited = "Requests refused for being too many, by category of limit";
        let rate_limited = make.count("rate_limited_total", limited, &["category"])?;
        for category in *limits {
            rate_limited.with_label_values(&[*category]);
        }
        let requests = ("http_requests_total", "HTTP answers by method, route and status");
        let propagation = "Seconds from the newest change of a batch until a follower was sent it";
        let expiry = "When the TLS certificate expires, in Unix seconds";
        let (keys, since) =
            ("Signing keys whose tokens are believed, by status", "When the key began to sign that signs now");
        Ok(Self {
            http_requests: make.count(requests.0, requests.1, &["method", "route", "status"])?,
            http_seconds: make.seconds(
                "http_request_duration_seconds",
                "Seconds until the answer, by route",
                &["route"],
            )?,
            refusals,
            rate_limited,
            operations: Operations::new(&make, codes)?,
            store: StoreMetrics::new(&make)?,
            webhooks: WebhookMetrics::new(&make, failures)?,
            redis: RedisMetrics::new(&make)?,
            sync_streams: make.gauge("sync_streams", "Sidecars that follow now")?,
            feed_revision: make.gauge("feed_revision", "Newest revision sent to followers")?,
            propagation: make.seconds("sync_propagation_seconds", propagation, &[])?.with_label_values::<&str>(&[]),
            certificate_expiry: make.gauge("certificate_expiry_timestamp_seconds", expiry)?,
            signing_keys: make.count_now("signing_keys", keys, &["status"])?,
            signing_key_since: make.instant("signing_key_signs_from", since)?,
            registry,
        })
    }

    /// HTTP requests that were answered, all together.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a counter is a whole number")]
    pub fn requests_answered(&self) -> u64 {
        let counted = self.http_requests.collect();
        let each = counted.iter().flat_map(prometheus::proto::MetricFamily::get_metric);
        each.map(|metric| metric.get_counter().get_value() as u64).sum()
    }
}

impl Operations {
    fn new(make: &Maker, codes: &[&str]) -> Made<Self> {
        let count = |name: &str, help: &str| make.count_results(name, help, codes);
        Ok(Self {
            registrations: count("registrations_total", "Registrations of agents by result")?,
            challenges: count("challenges_total", "Challenges by result")?,
            authentications: count("authentications_total", "Logins by result")?,
            refreshes: count("refreshes_total", "Refreshes by result")?,
            revocations: count("revocations_total", "Revocations of tokens by result")?,
            verifications: count("verifications_total", "Verifications for services by result")?,
            role_changes: count("role_changes_total", "Roles made, changed, deleted, assigned or revoked, by result")?,
            feedback: count("feedback_total", "Feedback about agents by result")?,
        })
    }
}

impl WebhookMetrics {
    fn new(make: &Maker, failures: &[&str]) -> Made<Self> {
        let attempts =
            make.count_results("webhook_attempts_total", "Tries to deliver an event, by result", failures)?;
        let deliveries = make.count("webhook_deliveries_total", "Deliveries that ended, by result", &["result"])?;
        for result in [Self::DELIVERED, Self::DEAD] {
            deliveries.with_label_values(&[result]);
        }
        let seconds = make.seconds("webhook_attempt_duration_seconds", "Seconds of a try to deliver an event", &[])?;
        let oldest = "Since when the oldest delivery waits that could be made; 0 if none does";
        Ok(Self {
            attempts,
            deliveries,
            seconds: seconds.with_label_values::<&str>(&[]),
            pending: make.gauge("webhook_deliveries_pending", "Deliveries that are not made yet")?,
            oldest_due: make.instant("webhook_oldest_due", oldest)?,
        })
    }

    const DELIVERED: &str = "delivered";
    const DEAD: &str = "dead";

    /// Counts a try, and the delivery if it ended: with success, or without.
    pub fn note(&self, failure: Option<&str>, ended: bool) {
        self.attempts.with_label_values(&[failure.unwrap_or(OK)]).inc();
        if ended {
            let result = if failure.is_none() { Self::DELIVERED } else { Self::DEAD };
            self.deliveries.with_label_values(&[result]).inc();
        }
    }
}

impl StoreMetrics {
    fn new(make: &Maker) -> Made<Self> {
        let (count, seconds) = ("store_transactions_total", "store_transaction_duration_seconds");
        let labels = ["backend", "kind", "result"];
        Ok(Self {
            transactions: make.count(count, "Transactions by backend, kind and result", &labels)?,
            seconds: make.seconds(seconds, "Seconds of a transaction, with the wait for a connection", &labels[..2])?,
        })
    }

    /// Notes the end of a transaction.
    pub fn note(&self, backend: &str, kind: Kind, ended: Ended, seconds: f64) {
        self.transactions.with_label_values(&[backend, kind.as_str(), ended.as_str()]).inc();
        self.seconds.with_label_values(&[backend, kind.as_str()]).observe(seconds);
    }

    /// Begins this backend's children at zero.
    pub fn begin(&self, backend: &str) {
        for kind in [Kind::Read, Kind::Write] {
            for ended in Ended::of(kind) {
                self.transactions.with_label_values(&[backend, kind.as_str(), ended.as_str()]);
            }
            self.seconds.with_label_values(&[backend, kind.as_str()]);
        }
    }
}

/// Where replicas count together. Nothing of it is shown where there is no Redis.
#[derive(Clone)]
pub struct RedisMetrics {
    up: IntGaugeVec,
    operations: IntCounterVec,
}

/// What came of a question to Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RedisResult {
    /// It answered.
    Answered,
    /// It did not, in time.
    Late,
    /// It said no, or the connection broke.
    Failed,
    /// It was not asked, for it is lost.
    Alone,
}

impl RedisResult {
    const ALL: [Self; 4] = [Self::Answered, Self::Late, Self::Failed, Self::Alone];

    /// The label `result`.
    const fn as_str(self) -> &'static str {
        match self {
            Self::Answered => OK,
            Self::Late => "late",
            Self::Failed => "failed",
            Self::Alone => "not_asked",
        }
    }
}

impl RedisMetrics {
    fn new(make: &Maker) -> Made<Self> {
        let up = make.count_now("redis_up", "Whether Redis answers, by kind: 1, or 0 if it is lost", &["kind"])?;
        let operations = make.count("redis_operations_total", "Questions to Redis by result", &["result"])?;
        Ok(Self { up, operations })
    }

    /// Begins at zero, for there is a Redis of this kind.
    pub fn begin(&self, kind: &str) {
        self.show(kind, false);
        for result in RedisResult::ALL {
            self.operations.with_label_values(&[result.as_str()]);
        }
    }

    /// Shows whether it is there.
    pub fn show(&self, kind: &str, up: bool) {
        self.up.with_label_values(&[kind]).set(up.into());
    }

    /// Notes what came of a question.
    pub fn note(&self, result: RedisResult) {
        self.operations.with_label_values(&[result.as_str()]).inc();
    }
}
