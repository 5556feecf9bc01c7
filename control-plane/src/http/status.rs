//! `GET /status`: how much there is, for whoever holds a service's key.

use super::{caller::Presented, error::ApiError, router::AppState};
use crate::operations::count_active;
use axum::{Json, extract::State};
use serde_json::{Value, json};

/// `GET /status`: `uptime` in seconds and `requestCount` are of this process.
pub async fn status(State(state): State<AppState>, presented: Presented) -> Result<Json<Value>, ApiError> {
    presented.full_key(&state).await?;
    let (services, agents) = count_active(&state.context).await?;
    Ok(Json(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "uptime": state.context.clock.since_boot().saturating_sub(state.began).as_secs(),
        "requestCount": state.metrics.requests_answered(),
        "activeServices": services,
        "activeAgents": agents,
    })))
}
