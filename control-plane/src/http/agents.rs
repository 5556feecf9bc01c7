//! Agents, as services and their owners see them.

use super::{
    body::Fields,
    caller::Presented,
    error::{ApiError, timestamp},
    ids::{Path, id},
    router::AppState,
};
use crate::{
    domain::agent::{Agent, status_text},
    operations,
};
use axum::{Json, extract::State};
use serde_json::{Value, json};

/// `GET /services/:serviceId/agents/:agentId`
pub async fn read(
    State(state): State<AppState>,
    presented: Presented,
    Path((service, agent)): Path<(String, String)>,
) -> Result<Json<Value>, ApiError> {
    presented.full_key_of(&state, id(&service)?).await?;
    let agent = operations::read_agent(&state.context, id(&agent)?).await?;
    Ok(Json(present(&agent)))
}

/// `PUT /agents/:agentId/status`
pub async fn set_status(
    State(state): State<AppState>,
    presented: Presented,
    Path(agent): Path<String>,
    body: Fields,
) -> Result<Json<Value>, ApiError> {
    let human = presented.human(&state)?;
    let agent = id(&agent)?;
    let status = body.parse(|fields| fields.required("status"))?;
    let agent = operations::set_agent_status(&state.context, &human, agent, status).await?;
    Ok(Json(present(&agent)))
}

fn present(agent: &Agent) -> Value {
    json!({
        "id": agent.id,
        "name": agent.registration.name.as_str(),
        "publicKeyHash": agent.registration.key_hash,
        "status": status_text(agent.status),
        "trustScore": agent.trust,
        "metadata": agent.registration.metadata.as_map(),
        "createdAt": timestamp(agent.created_at),
        "updatedAt": timestamp(agent.updated_at),
        "lastSeenAt": agent.last_seen_at.map(timestamp),
    })
}
