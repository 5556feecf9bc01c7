//! Agents, as services and their owners see them.

use super::{
    body::{Fields, FromField},
    caller::Presented,
    error::{ApiError, Problem, timestamp},
    ids::{Path, id},
    paging,
    router::AppState,
};
use crate::{
    domain::{
        agent::{Agent, status_text},
        page::Page,
    },
    operations::{self, AgentFilter, Holder},
};
use axum::{
    Json,
    extract::{RawQuery, State},
};
use countersign_identity::{AgentStatus, RoleTable};
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

/// `GET /services/:serviceId/agents`
pub async fn list(
    State(state): State<AppState>,
    presented: Presented,
    Path(service): Path<String>,
    page: Result<Page, ApiError>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, ApiError> {
    let service = id(&service)?;
    presented.manager_of(&state, service).await?;
    let (page, filter) = (page?, filter(query.as_deref().unwrap_or_default())?);
    let (holders, roles) = operations::list_agents(&state.context, service, filter, page).await?;
    Ok(Json(paging::present(page, &holders, |holder| present_holder(holder, &roles))))
}

/// `role` and `status` of the query; both are optional.
fn filter(query: &str) -> Result<AgentFilter, ApiError> {
    let parameter = |name| paging::parameter(query, name).map_err(|problem| ApiError::invalid(&[problem]));
    let role = parameter("role")?.map(|role| id(&role)).transpose()?;
    let status = parameter("status")?.map(|status| AgentStatus::from_field(Value::from(status.as_ref())));
    let wrong = |message| ApiError::invalid(&[Problem { field: "status".to_owned(), message }]);
    Ok(AgentFilter { role, status: status.transpose().map_err(wrong)? })
}

/// `PUT /agents/:agentId/status`
pub async fn set_status(
    State(state): State<AppState>,
    presented: Presented,
    Path(agent): Path<String>,
    body: Fields,
) -> Result<Json<Value>, ApiError> {
    let human = presented.human(&state).await?;
    let agent = id(&agent)?;
    let status = body.parse(|fields| fields.required("status"))?;
    let agent =
        operations::set_agent_status(&state.context, &presented.author_of(Some(&human)), &human, agent, status).await?;
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

fn present_holder(holder: &Holder, roles: &RoleTable) -> Value {
    let mut record = present(&holder.agent);
    let held = holder.held.iter().filter_map(|grant| {
        let role = roles.get(grant.role)?;
        Some(json!({ "id": role.id, "name": role.name, "expiresAt": grant.until.map(timestamp) }))
    });
    record["roles"] = held.collect();
    record
}
