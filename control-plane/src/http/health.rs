//! `GET /health`: never behind a credential, never longer than a second.

use super::{error::timestamp, router::AppState};
use crate::operations::probe_database;
use axum::{Json, extract::State, http::StatusCode};
use serde_json::{Value, json};
use std::time::Duration;

/// How long the database may take to answer.
const PATIENCE: Duration = Duration::from_millis(900);

/// Unhealthy, and then 503, only when the database does not answer.
pub async fn health(State(state): State<AppState>) -> (StatusCode, Json<Value>) {
    let database =
        tokio::time::timeout(PATIENCE, probe_database(&state.context)).await.is_ok_and(|probe| probe.is_ok());
    let (code, status, check) = if database {
        (StatusCode::OK, "healthy", "up")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "unhealthy", "down")
    };
    let body = json!({
        "status": status,
        "timestamp": timestamp(state.context.now()),
        // Without Redis its part is played by this process; events are queued in the database.
        "checks": { "database": check, "redis": "up", "webhook_queue": check },
        "backends": { "database": "sqlite", "redis": "memory" },
    });
    (code, Json(body))
}
