//! `GET /health`: requires no credential, and responds within a second.

use crate::{
    domain::{housekeeping::HousekeepingHealth, webhook::health::QueueHealth},
    ephemeral::RateLimitBackend,
    http::api::prelude::*,
    operations::{DatabaseHealth, lacks_current_master_key, probe_database, probe_dispatcher, probe_housekeeping},
};
use std::time::Duration;

/// Timeout of the database check.
const DATABASE_TIMEOUT: Duration = Duration::from_millis(900);

/// Health of the server.
#[derive(Serialize, ToSchema)]
pub struct Health {
    status: HealthStatus,
    /// Time of the check.
    timestamp: Rfc3339,
    checks: HealthChecks,
    /// Reasons for checks that are not `up`. A check whose name says everything has no reason.
    #[schema(example = json!([]))]
    reasons: Vec<HealthReason>,
    backends: HealthBackends,
}

/// `unhealthy`: the database does not respond, or it uses a master key that this control plane does not have. `degraded`: the
/// database is read-only, webhook events are not delivered, Redis is not reachable, or expired rows are not deleted. Agents can
/// log in while the server is `degraded`, unless the database is read-only.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum HealthStatus {
    Healthy,
    Degraded,
    Unhealthy,
}

// The variants are in order from good to bad, so that `max` of two statuses is the worse one.
/// Result of a check.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum CheckStatus {
    Up,
    Degraded,
    Down,
}

/// Results of the checks.
#[derive(Serialize, ToSchema)]
struct HealthChecks {
    /// `degraded` if the database can be read but not written, `down` if it does not respond.
    database: CheckStatus,
    /// `down` if Redis is configured and does not respond: each replica then counts rate limits by itself. `up` if Redis is
    /// not configured: see `backends.redis`.
    redis: CheckStatus,
    /// Delivery of events to webhooks: `degraded` if an event that is due has waited for more than five minutes, `down` if
    /// deliveries have stopped.
    webhook_queue: CheckStatus,
    /// Deletion of expired rows by this control plane: `degraded` if rows have waited for more than an hour, or if no pass was
    /// complete for two hours. `reasons` says which.
    housekeeping: CheckStatus,
    /// `down` if the database uses a new master key that this control plane does not have: agents cannot log in here, and most
    /// changes are refused.
    master_key: CheckStatus,
}

/// Why a check is not `up`.
#[derive(Serialize, ToSchema)]
struct HealthReason {
    /// Name of the check.
    #[schema(example = "housekeeping")]
    check: &'static str,
    code: HealthCode,
    /// For `rows_overdue`: the kind of rows that waits longest, as in the metric
    /// `countersign_housekeeping_oldest_expired_timestamp_seconds`.
    #[schema(example = "sessions")]
    data: Option<&'static str>,
    /// The reason in words.
    #[schema(example = "rows that can be deleted have waited for more than an hour: sessions")]
    message: String,
}

/// `rows_overdue`: expired rows have waited for their deletion for more than an hour. `pass_overdue`: no pass over all kinds of
/// rows was complete for two hours. `master_key_missing`: the current master key is not configured.
#[derive(Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum HealthCode {
    RowsOverdue,
    PassOverdue,
    MasterKeyMissing,
}

/// The backends that are configured.
#[derive(Serialize, ToSchema)]
struct HealthBackends {
    /// `sqlite` or `postgresql`.
    #[schema(example = "sqlite")]
    database: &'static str,
    /// Where rate limits are counted: `redis`, or `memory` of each process if Redis is not configured.
    #[schema(example = "memory")]
    redis: &'static str,
}

/// Says why housekeeping is not `up`; `None` if it is.
fn housekeeping_reason(health: HousekeepingHealth) -> Option<HealthReason> {
    let (code, data, message) = match health {
        HousekeepingHealth::Up => return None,
        HousekeepingHealth::Overdue(data) => {
            let data = data.as_str();
            let message = format!("rows that can be deleted have waited for more than an hour: {data}");
            (HealthCode::RowsOverdue, Some(data), message)
        }
        HousekeepingHealth::Stalled => {
            let message = "no pass over all expired rows was complete for two hours; see the log".to_owned();
            (HealthCode::PassOverdue, None, message)
        }
    };
    Some(HealthReason { check: "housekeeping", code, data, message })
}

/// Says that the database uses a master key that is not configured; `None` otherwise.
fn master_key_reason(is_missing: bool) -> Option<HealthReason> {
    let message = "the database uses a new master key that this control plane does not have; see the log".to_owned();
    is_missing.then_some(HealthReason { check: "master_key", code: HealthCode::MasterKeyMissing, data: None, message })
}

/// Read the health of the server
///
/// Responds within a second, even if the database does not respond. The status is 503 only if the server is `unhealthy`.
#[utoipa::path(
    get, path = "/health", operation_id = "readHealth", tag = "Server", security(()),
    responses(
        (status = 200, description = "Healthy or degraded", body = Health),
        (
            status = 503, description = "Unhealthy", body = Health,
            example = json!({
                "status": "unhealthy",
                "timestamp": "2027-03-14T15:09:26.535897Z",
                "checks": {
                    "database": "down", "redis": "up", "webhook_queue": "down", "housekeeping": "up", "master_key": "up",
                },
                "reasons": [],
                "backends": { "database": "postgresql", "redis": "redis" },
            }),
        ),
        Errors<(InternalOnly,)>,
    )
)]
pub async fn health(State(state): State<AppState>) -> (StatusCode, Json<Health>) {
    let database = match probe_database(&state.context, DATABASE_TIMEOUT).await {
        DatabaseHealth::Up => CheckStatus::Up,
        DatabaseHealth::ReadOnly => CheckStatus::Degraded,
        DatabaseHealth::Down => CheckStatus::Down,
    };
    let webhook_queue = match probe_dispatcher(&state.context) {
        QueueHealth::Up => CheckStatus::Up,
        QueueHealth::Behind => CheckStatus::Degraded,
        QueueHealth::Down => CheckStatus::Down,
    };
    let (redis, backend) = match state.limits.backend() {
        RateLimitBackend::Memory => (CheckStatus::Up, "memory"),
        RateLimitBackend::Redis => (CheckStatus::Up, "redis"),
        RateLimitBackend::MemoryFallback => (CheckStatus::Down, "redis"),
    };
    let housekeeping_problem = housekeeping_reason(probe_housekeeping(&state.context));
    let housekeeping = if housekeeping_problem.is_none() { CheckStatus::Up } else { CheckStatus::Degraded };
    let master_key_problem = master_key_reason(lacks_current_master_key(&state.context));
    let master_key = if master_key_problem.is_none() { CheckStatus::Up } else { CheckStatus::Down };
    // Agents can log in without Redis, webhooks and housekeeping, so their failure makes the server degraded and not unhealthy.
    let status = if [database, master_key].contains(&CheckStatus::Down) {
        HealthStatus::Unhealthy
    } else if [database, master_key, webhook_queue, redis, housekeeping].iter().all(|check| *check == CheckStatus::Up) {
        HealthStatus::Healthy
    } else {
        HealthStatus::Degraded
    };
    let code = match status {
        HealthStatus::Unhealthy => StatusCode::SERVICE_UNAVAILABLE,
        HealthStatus::Healthy | HealthStatus::Degraded => StatusCode::OK,
    };
    // Without the database, no event is delivered.
    let webhook_queue = webhook_queue.max(database);
    let body = Health {
        status,
        timestamp: Rfc3339(state.context.now()),
        checks: HealthChecks { database, redis, webhook_queue, housekeeping, master_key },
        reasons: master_key_problem.into_iter().chain(housekeeping_problem).collect(),
        backends: HealthBackends { database: state.context.database_engine(), redis: backend },
    };
    (code, Json(body))
}
