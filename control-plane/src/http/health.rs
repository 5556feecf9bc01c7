//! `GET /health`: never behind a credential, never longer than a second.

use super::{error::timestamp, router::AppState};
use crate::operations::{DatabaseHealth, probe_database};
use axum::{Json, extract::State, http::StatusCode};
use serde_json::{Value, json};
use std::time::Duration;

/// How long the database may take to answer.
const PATIENCE: Duration = Duration::from_millis(900);

/// 503 only when unhealthy, which is when the database does not answer; degraded when it can be read and not
/// written.
pub async fn health(State(state): State<AppState>) -> (StatusCode, Json<Value>) {
    let (code, status, check) = match probe_database(&state.context, PATIENCE).await {
        DatabaseHealth::Up => (StatusCode::OK, "healthy", "up"),
        DatabaseHealth::ReadOnly => (StatusCode::OK, "degraded", "degraded"),
        DatabaseHealth::Down => (StatusCode::SERVICE_UNAVAILABLE, "unhealthy", "down"),
    };
    let body = json!({
        "status": status,
        "timestamp": timestamp(state.context.now()),
        // Without Redis its part is played by this process; events are queued in the database.
        "checks": { "database": check, "redis": "up", "webhook_queue": check },
        "backends": { "database": state.context.store.engine_name(), "redis": "memory" },
    });
    (code, Json(body))
}
