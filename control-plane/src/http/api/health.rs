//! `GET /health`: never behind a credential, never longer than a second.

use crate::{
    domain::webhook::health::QueueHealth,
    ephemeral::RateLimitBackend,
    http::{
        error::Instant,
        openapi::{
            errors::{Errors, Nothing},
            schema,
        },
        state::AppState,
    },
    operations::{DatabaseHealth, probe_database, probe_queue},
};
use axum::{Json, extract::State, http::StatusCode};
use serde::Serialize;
use std::time::Duration;
use utoipa::ToSchema;

/// How long the database may take to answer.
const PATIENCE: Duration = Duration::from_millis(900);

/// How the server is.
#[derive(Serialize, ToSchema)]
pub struct Health {
    status: Overall,
    /// When this was found.
    #[schema(value_type = schema::Instant)]
    timestamp: Instant,
    checks: Checks,
    backends: Backends,
}

/// `unhealthy` if the database does not answer; `degraded` if it can be read and not written, events are not delivered, or
/// Redis is lost.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum Overall {
    Healthy,
    Degraded,
    Unhealthy,
}

/// How a part is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum Check {
    Up,
    Degraded,
    Down,
}

/// How the parts are.
#[derive(Serialize, ToSchema)]
struct Checks {
    database: Check,
    /// `down` if Redis does not answer: then each control plane limits the number of calls alone. Without Redis its part
    /// is played by the process.
    redis: Check,
    /// The delivery of events to webhooks: `degraded` if one that could be delivered waits for more than five minutes,
    /// `down` if nobody delivers.
    webhook_queue: Check,
}

/// What plays the parts.
#[derive(Serialize, ToSchema)]
struct Backends {
    /// `sqlite` or `postgresql`.
    #[schema(example = "sqlite")]
    database: &'static str,
    /// `redis`, or `memory`: this process.
    #[schema(example = "memory")]
    redis: &'static str,
}

/// Read the health of the server
///
/// Answers within a second, also when the database does not. 503 only when unhealthy.
#[utoipa::path(
    get, path = "/health", operation_id = "readHealth", tag = "Server", security(()),
    responses(
        (status = 200, description = "Healthy or degraded", body = Health),
        (status = 503, description = "Unhealthy", body = Health),
        Errors<(Nothing,)>,
    )
)]
pub async fn health(State(state): State<AppState>) -> (StatusCode, Json<Health>) {
    let (code, status, check) = match probe_database(&state.context, PATIENCE).await {
        DatabaseHealth::Up => (StatusCode::OK, Overall::Healthy, Check::Up),
        DatabaseHealth::ReadOnly => (StatusCode::OK, Overall::Degraded, Check::Degraded),
        DatabaseHealth::Down => (StatusCode::SERVICE_UNAVAILABLE, Overall::Unhealthy, Check::Down),
    };
    let webhook_queue = match probe_queue(&state.context) {
        QueueHealth::Up => Check::Up,
        QueueHealth::Behind => Check::Degraded,
        QueueHealth::Down => Check::Down,
    };
    let (redis, backend) = match state.limits.backend() {
        RateLimitBackend::Memory => (Check::Up, "memory"),
        RateLimitBackend::Redis => (Check::Up, "redis"),
        RateLimitBackend::MemoryFallback => (Check::Down, "redis"),
    };
    // Agents log in all the same.
    let status = if webhook_queue.max(redis) == Check::Up { status } else { status.max(Overall::Degraded) };
    let body = Health {
        status,
        timestamp: Instant(state.context.now()),
        checks: Checks { database: check, redis, webhook_queue: webhook_queue.max(check) },
        backends: Backends { database: state.context.database_engine(), redis: backend },
    };
    (code, Json(body))
}
