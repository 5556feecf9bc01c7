//! `GET /status`: how much there is, for whoever holds a service's key.

use crate::{
    http::{
        error::ApiError,
        openapi::errors::{Errors, FullKey},
        request::caller::Presented,
        state::AppState,
    },
    operations::count_active_records,
};
use axum::{Json, extract::State};
use serde::Serialize;
use utoipa::ToSchema;

/// How much there is.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// The version of the server.
    #[schema(example = "0.1.0")]
    version: &'static str,
    /// For how many seconds this process has been running.
    #[schema(minimum = 0, example = 86_400)]
    uptime: u64,
    /// How many requests this process has answered.
    #[schema(minimum = 0, example = 1_048_576)]
    request_count: u64,
    /// How many services there are.
    #[schema(minimum = 0, example = 12)]
    active_services: i64,
    /// How many agents have the status `active`.
    #[schema(minimum = 0, example = 4_096)]
    active_agents: i64,
}

/// Read the status of the server
#[utoipa::path(
    get, path = "/status", operation_id = "readStatus", tag = "Server", security(("serviceKey" = [])),
    responses((status = 200, description = "How much there is", body = Status), Errors<(FullKey,)>)
)]
pub async fn status(State(state): State<AppState>, presented: Presented) -> Result<Json<Status>, ApiError> {
    presented.full_key(&state).await?;
    let (active_services, active_agents) = count_active_records(&state.context).await?;
    Ok(Json(Status {
        version: env!("CARGO_PKG_VERSION"),
        uptime: state.context.since_boot().saturating_sub(state.began).as_secs(),
        request_count: state.metrics.requests_answered(),
        active_services,
        active_agents,
    }))
}
