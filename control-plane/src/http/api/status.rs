//! `GET /status`: version, uptime and counts, for callers with a service API key.

use crate::{http::api::prelude::*, operations::count_services_and_active_agents};

/// Version, uptime and counts.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Version of the server.
    #[schema(example = "0.1.0")]
    version: &'static str,
    /// Seconds since this process started.
    #[schema(minimum = 0, example = 86_400)]
    uptime: u64,
    /// Number of requests that this process has answered.
    #[schema(minimum = 0, example = 1_048_576)]
    request_count: u64,
    /// Number of services.
    #[schema(minimum = 0, example = 12)]
    active_services: i64,
    /// Number of agents with status `active`.
    #[schema(minimum = 0, example = 4_096)]
    active_agents: i64,
}

/// Read the status of the server
#[utoipa::path(
    get, path = "/status", operation_id = "readStatus", tag = "Server", security(("serviceKey" = [])),
    responses((status = 200, description = "Version, uptime and counts", body = Status), Errors<(FullKeyAuth,)>)
)]
pub async fn status(call: Call) -> Result<Json<Status>, ApiError> {
    call.require_full_key().await?;
    let (active_services, active_agents) = count_services_and_active_agents(call.context()).await?;
    Ok(Json(Status {
        version: env!("CARGO_PKG_VERSION"),
        uptime: call.context().since_boot().saturating_sub(call.state.started_at).as_secs(),
        request_count: call.state.metrics.http_response_count(),
        active_services,
        active_agents,
    }))
}
