//! `/services/:serviceId/roles`, and who holds them.

use super::{
    body::Fields,
    caller::Presented,
    error::{ApiError, timestamp},
    idempotency::Repeatable,
    ids::{Path, id},
    router::AppState,
};
use crate::{
    domain::{
        role::{Role, RoleRequest},
        text::Description,
    },
    operations::{self, AssignmentRequest, Reply, RoleChange},
};
use axum::{Json, extract::State, http::StatusCode};
use serde_json::{Value, json};

/// `POST /services/:serviceId/roles`
pub async fn create(
    State(state): State<AppState>,
    presented: Presented,
    Path(service): Path<String>,
    repeatable: Result<Repeatable, ApiError>,
    body: Fields,
) -> Result<(StatusCode, Json<Value>), ApiError> {
    let service = id(&service)?;
    let by = presented.manager_of(&state, service).await?;
    let request = body.parse(|fields| {
        let (name, description) = (fields.required("name"), fields.optional::<Description>("description"));
        let permissions = fields.required("permissions");
        Some(RoleRequest { name: name?, description: description?.unwrap_or_default(), permissions: permissions? })
    })?;
    let present = |role: &Role| {
        json!({
            "roleId": role.definition.id,
            "name": role.definition.name,
            "permissions": role.definition.permissions,
        })
    };
    let reply = Reply { repeat: repeatable?.0, present };
    let body = operations::create_role(&state.context, &by, service, &request, &reply).await?;
    Ok((StatusCode::CREATED, Json(body)))
}

/// `GET /services/:serviceId/roles`
pub async fn list(
    State(state): State<AppState>,
    presented: Presented,
    Path(service): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let service = id(&service)?;
    presented.manager_of(&state, service).await?;
    let roles = operations::list_roles(&state.context, service).await?;
    let data: Vec<_> = roles.iter().map(present).collect();
    Ok(Json(json!({ "data": data })))
}

/// `DELETE /services/:serviceId/roles/:roleId`
pub async fn remove(
    State(state): State<AppState>,
    presented: Presented,
    Path((service, role)): Path<(String, String)>,
) -> Result<Json<Value>, ApiError> {
    let service = id(&service)?;
    let by = presented.manager_of(&state, service).await?;
    operations::delete_role(&state.context, &by, service, id(&role)?).await?;
    Ok(Json(json!({ "deleted": true })))
}

/// `PATCH /services/:serviceId/roles/:roleId`
pub async fn change(
    State(state): State<AppState>,
    presented: Presented,
    Path((service, role)): Path<(String, String)>,
    body: Fields,
) -> Result<Json<Value>, ApiError> {
    let service = id(&service)?;
    let by = presented.manager_of(&state, service).await?;
    let change = body.parse(|fields| {
        let (permissions, description) = (fields.optional("permissions"), fields.optional("description"));
        Some(RoleChange { permissions: permissions?, description: description? })
    })?;
    let role = operations::change_role(&state.context, &by, service, id(&role)?, &change).await?;
    Ok(Json(present(&role)))
}

/// `POST /services/:serviceId/agents/:agentId/roles`
pub async fn assign(
    State(state): State<AppState>,
    presented: Presented,
    Path((service, agent)): Path<(String, String)>,
    body: Fields,
) -> Result<Json<Value>, ApiError> {
    let service = id(&service)?;
    let by = presented.manager_of(&state, service).await?;
    let agent = id(&agent)?;
    let (role, expires_at) = body.parse(|fields| {
        let (role, expires_at) = (fields.required::<String>("roleId"), fields.optional("expiresAt"));
        Some((role?, expires_at?))
    })?;
    let request = AssignmentRequest { service, agent, role: id(&role)?, expires_at };
    operations::assign_role(&state.context, &by, request).await?;
    Ok(Json(json!({ "assigned": true })))
}

/// `DELETE /services/:serviceId/agents/:agentId/roles/:roleId`
pub async fn revoke(
    State(state): State<AppState>,
    presented: Presented,
    Path((service, agent, role)): Path<(String, String, String)>,
) -> Result<Json<Value>, ApiError> {
    let service = id(&service)?;
    let by = presented.manager_of(&state, service).await?;
    let revoked = operations::revoke_role(&state.context, &by, service, id(&agent)?, id(&role)?).await?;
    Ok(Json(json!({ "revoked": revoked })))
}

fn present(role: &Role) -> Value {
    json!({
        "id": role.definition.id,
        "name": role.definition.name,
        "description": role.description.as_str(),
        "permissions": role.definition.permissions,
        "createdAt": timestamp(role.created_at),
    })
}
