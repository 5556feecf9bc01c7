//! `/services/:serviceId/roles`, and who holds them.

use crate::{
    domain::{
        role::{Role, RoleRequest},
        text::Description,
    },
    http::{
        error::{ApiError, Instant},
        openapi::{
            errors::{Body, Errors, Manager, NoAgent, NoRole, NoService, Repeated, RoleConflict, TooManyRoles},
            schema::{self, AgentInPath, RoleInPath, ServiceInPath},
        },
        request::{
            body::{
                Fields,
                shape::{Sent, body},
            },
            caller::Presented,
            idempotency::Repeatable,
            ids::{InPath, id},
        },
        state::AppState,
    },
    operations::{self, AssignmentRequest, IdempotentReply, RoleChange},
};
use axum::{Json, extract::State, http::StatusCode};
use countersign_identity::{Permission, RoleDefinition, RoleId, RoleName, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

body! {
    /// A role to be defined.
    NewRole {
        required "name" name: RoleName,
        /// What it is for.
        optional "description" description: Description,
        /// All permissions of a service together have at most 4096 bytes, so that they fit into headers.
        required "permissions" permissions: Vec<Permission>,
    }
    /// What is to be changed of a role; what is left out stays.
    RoleChanges {
        /// What it permits from now on, instead of what it permitted.
        optional "permissions" permissions: Vec<Permission>,
        /// What it is for.
        optional "description" description: Description,
    }
    /// A role to be assigned.
    Assignment {
        required "roleId" role: Sent<RoleId>,
        /// If it is left out, the role does not end. Assigning again replaces it.
        optional "expiresAt" expires_at: Timestamp,
    }
}

/// A role that was made.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CreatedRole {
    #[schema(value_type = schema::RoleId)]
    role_id: RoleId,
    #[schema(value_type = schema::RoleName)]
    name: RoleName,
    #[schema(value_type = schema::Permissions)]
    permissions: Vec<Permission>,
}

/// A role.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RoleRecord {
    #[schema(value_type = schema::RoleId)]
    id: RoleId,
    #[schema(value_type = schema::RoleName)]
    name: RoleName,
    #[schema(value_type = schema::Description)]
    description: String,
    #[schema(value_type = schema::Permissions)]
    permissions: Vec<Permission>,
    /// When it was made.
    #[schema(value_type = schema::Instant)]
    created_at: Instant,
}

/// All roles of a service.
#[derive(Serialize, ToSchema)]
pub struct RoleList {
    #[schema(max_items = 256)]
    data: Vec<RoleRecord>,
}

/// A role was deleted.
#[derive(Serialize, ToSchema)]
pub struct RoleDeleted {
    /// Always true.
    #[schema(example = true)]
    deleted: bool,
}

/// A role was assigned.
#[derive(Serialize, ToSchema)]
pub struct RoleAssigned {
    /// Always true.
    #[schema(example = true)]
    assigned: bool,
}

/// What became of an assignment.
#[derive(Serialize, ToSchema)]
pub struct RoleRevoked {
    /// False if the agent did not hold the role.
    #[schema(example = true)]
    revoked: bool,
}

/// Define a role
///
/// A service has at most 256 roles.
#[utoipa::path(
    post, path = "/services/{service}/roles", operation_id = "createRole", tag = "Roles",
    params(ServiceInPath, Repeatable), request_body = NewRole, security(("serviceKey" = []), ("humanToken" = [])),
    responses(
        (status = 201, description = "The role", body = CreatedRole),
        Errors<(Manager, Body, NoService, RoleConflict, Repeated)>,
    )
)]
pub async fn create(
    State(state): State<AppState>,
    presented: Presented,
    InPath(service): InPath<String>,
    repeatable: Result<Repeatable, ApiError>,
    body: Fields,
) -> Result<(StatusCode, Json<CreatedRole>), ApiError> {
    let service = id(&service)?;
    let by = presented.manager_of(&state, service).await?;
    let NewRole { name, description, permissions } = body.read()?;
    let request = RoleRequest { name, description: description.unwrap_or_default(), permissions };
    let reply = IdempotentReply { request: repeatable?.0, present: created };
    let body = operations::create_role(&state.context, &by, service, &request, &reply).await?;
    Ok((StatusCode::CREATED, Json(body)))
}

fn created(role: &Role) -> CreatedRole {
    let RoleDefinition { id, name, permissions, created_revision: _ } = role.definition.clone();
    CreatedRole { role_id: id, name, permissions }
}

/// List the roles of a service
#[utoipa::path(
    get, path = "/services/{service}/roles", operation_id = "listRoles", tag = "Roles",
    params(ServiceInPath), security(("serviceKey" = []), ("humanToken" = [])),
    responses((status = 200, description = "All its roles", body = RoleList), Errors<(Manager, NoService)>)
)]
pub async fn list(
    State(state): State<AppState>,
    presented: Presented,
    InPath(service): InPath<String>,
) -> Result<Json<RoleList>, ApiError> {
    let service = id(&service)?;
    presented.manager_of(&state, service).await?;
    let roles = operations::list_roles(&state.context, service).await?;
    Ok(Json(RoleList { data: roles.into_iter().map(present).collect() }))
}

/// Delete a role
///
/// Whoever holds it loses it, within moments. A later role of the same name is another role.
#[utoipa::path(
    delete, path = "/services/{service}/roles/{role}", operation_id = "deleteRole", tag = "Roles",
    params(ServiceInPath, RoleInPath), security(("serviceKey" = []), ("humanToken" = [])),
    responses((status = 200, description = "The role is gone", body = RoleDeleted), Errors<(Manager, NoService, NoRole)>)
)]
pub async fn remove(
    State(state): State<AppState>,
    presented: Presented,
    InPath((service, role)): InPath<(String, String)>,
) -> Result<Json<RoleDeleted>, ApiError> {
    let service = id(&service)?;
    let by = presented.manager_of(&state, service).await?;
    operations::delete_role(&state.context, &by, service, id(&role)?).await?;
    Ok(Json(RoleDeleted { deleted: true }))
}

/// Change a role
///
/// What it permits counts within moments for all who hold it. Its name stays: tokens say it.
#[utoipa::path(
    patch, path = "/services/{service}/roles/{role}", operation_id = "changeRole", tag = "Roles",
    params(ServiceInPath, RoleInPath), request_body = RoleChanges, security(("serviceKey" = []), ("humanToken" = [])),
    responses(
        (status = 200, description = "The role as it is now", body = RoleRecord),
        Errors<(Manager, Body, NoService, NoRole, RoleConflict)>,
    )
)]
pub async fn change(
    State(state): State<AppState>,
    presented: Presented,
    InPath((service, role)): InPath<(String, String)>,
    body: Fields,
) -> Result<Json<RoleRecord>, ApiError> {
    let service = id(&service)?;
    let by = presented.manager_of(&state, service).await?;
    let RoleChanges { permissions, description } = body.read()?;
    let change = RoleChange { permissions, description };
    let role = operations::change_role(&state.context, &by, service, id(&role)?, &change).await?;
    Ok(Json(present(role)))
}

/// Assign a role
///
/// Counts within moments, also for tokens that were issued before. A role that has ended is absent everywhere.
#[utoipa::path(
    post, path = "/services/{service}/agents/{agent}/roles", operation_id = "assignRole", tag = "Roles",
    params(ServiceInPath, AgentInPath), request_body = Assignment,
    security(("serviceKey" = []), ("humanToken" = [])),
    responses(
        (status = 200, description = "The agent holds the role", body = RoleAssigned),
        Errors<(Manager, Body, NoService, NoAgent, NoRole, TooManyRoles)>,
    )
)]
pub async fn assign(
    State(state): State<AppState>,
    presented: Presented,
    InPath((service, agent)): InPath<(String, String)>,
    body: Fields,
) -> Result<Json<RoleAssigned>, ApiError> {
    let service = id(&service)?;
    let by = presented.manager_of(&state, service).await?;
    let agent = id(&agent)?;
    let Assignment { role, expires_at } = body.read()?;
    let request = AssignmentRequest { service, agent, role: role.id()?, expires_at };
    operations::assign_role(&state.context, &by, request).await?;
    Ok(Json(RoleAssigned { assigned: true }))
}

/// Revoke a role
///
/// Counts within moments, also for tokens that say the agent holds it.
#[utoipa::path(
    delete, path = "/services/{service}/agents/{agent}/roles/{role}", operation_id = "revokeRole", tag = "Roles",
    params(ServiceInPath, AgentInPath, RoleInPath), security(("serviceKey" = []), ("humanToken" = [])),
    responses(
        (status = 200, description = "The agent does not hold the role", body = RoleRevoked),
        Errors<(Manager, NoService, NoAgent, NoRole)>,
    )
)]
pub async fn revoke(
    State(state): State<AppState>,
    presented: Presented,
    InPath((service, agent, role)): InPath<(String, String, String)>,
) -> Result<Json<RoleRevoked>, ApiError> {
    let service = id(&service)?;
    let by = presented.manager_of(&state, service).await?;
    let revoked = operations::revoke_role(&state.context, &by, service, id(&agent)?, id(&role)?).await?;
    Ok(Json(RoleRevoked { revoked }))
}

fn present(role: Role) -> RoleRecord {
    let Role { definition, service: _, description, created_at } = role;
    let RoleDefinition { id, name, permissions, created_revision: _ } = definition;
    RoleRecord { id, name, description: description.to_string(), permissions, created_at: Instant(created_at) }
}
