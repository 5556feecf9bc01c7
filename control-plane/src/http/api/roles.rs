//! `/services/{service}/roles`: the roles of a service, and their assignment to agents.

use crate::{
    domain::role::Role,
    http::api::prelude::*,
    operations::{AssignmentRequest, RoleChange, RoleRequest},
};
use countersign_identity::{Permission, Revision, RoleDefinition, RoleId, RoleName, Timestamp};
use serde::Deserialize;

body! {
    /// A role to create.
    NewRole {
        required "name" name: RoleName,
        /// Description of the role, for human readers.
        optional "description" description: Description,
        /// Permissions that the role grants. In an HTTP header, where `%` takes 3 bytes, the names of all permissions of a
        /// service together have at most 4096 bytes.
        required "permissions" permissions: Vec<Permission>,
        /// The label of the declaration files that contain the role.
        optional "managedBy" managed_by: ManagedBy,
    }
    /// Changes to a role. Absent fields keep their value.
    RoleChanges {
        /// The new permissions, which replace all old permissions.
        optional "permissions" permissions: Vec<Permission>,
        /// Description of the role, for human readers.
        optional "description" description: Description,
        /// The new `managedBy` value.
        optional "managedBy" managed_by: ManagedBy,
    }
    /// A role to assign.
    RoleAssignmentRequest {
        required "roleId" role: UnparsedId<RoleId>,
        /// Expiry time of the assignment. If `expiresAt` is absent, the assignment does not expire. Assigning the role again
        /// replaces the expiry time.
        optional "expiresAt" expires_at: Timestamp,
        /// The label of the declaration files that contain the assignment. If it is absent, an existing assignment keeps its label.
        optional "managedBy" managed_by: ManagedBy,
    }
}

/// A created role.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CreatedRole {
    #[schema(value_type = schema::RoleIdSchema)]
    role_id: RoleId,
    #[schema(value_type = schema::RoleNameSchema)]
    name: RoleName,
    #[schema(value_type = schema::PermissionsSchema)]
    permissions: Vec<Permission>,
    #[schema(value_type = schema::RevisionSchema)]
    revision: Revision,
}

/// A role.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RoleRecord {
    #[schema(value_type = schema::RoleIdSchema)]
    id: RoleId,
    #[schema(value_type = schema::RoleNameSchema)]
    name: RoleName,
    description: Description,
    #[schema(value_type = schema::PermissionsSchema)]
    permissions: Vec<Permission>,
    /// The label of the declaration files that contain the role; null if no file does.
    #[schema(required)]
    managed_by: Option<ManagedBy>,
    /// Time of creation.
    created_at: Rfc3339,
}

/// A changed role.
#[derive(Serialize, ToSchema)]
pub struct ChangedRole {
    #[serde(flatten)]
    role: RoleRecord,
    #[schema(value_type = schema::RevisionSchema)]
    revision: Revision,
}

/// All roles of a service.
#[derive(Serialize, ToSchema)]
pub struct RoleList {
    #[schema(max_items = 256)]
    data: Vec<RoleRecord>,
}

/// Result of a deletion.
#[derive(Serialize, ToSchema)]
pub struct RoleDeleted {
    /// Always true.
    #[schema(example = true)]
    deleted: bool,
    #[schema(value_type = schema::RevisionSchema)]
    revision: Revision,
}

/// Result of an assignment.
#[derive(Serialize, ToSchema)]
pub struct RoleAssignmentResponse {
    /// Always true.
    #[schema(example = true)]
    assigned: bool,
    #[schema(value_type = schema::RevisionSchema)]
    revision: Revision,
}

/// Result of a revocation.
#[derive(Serialize, ToSchema)]
pub struct RoleRevocationResponse {
    /// False if the agent did not have the role.
    #[schema(example = true)]
    revoked: bool,
    #[schema(value_type = schema::RevisionSchema)]
    revision: Revision,
}

/// Create a role
///
/// A service can have at most 256 roles.
#[utoipa::path(
    post, path = "/services/{service}/roles", operation_id = "createRole", tag = "Roles",
    params(ServicePathParam, IdempotencyHeader), request_body = NewRole, security(("serviceKey" = []), ("humanToken" = [])),
    responses(
        (status = 201, description = "The role", body = CreatedRole),
        Errors<(ManagerAuth, InvalidBody, ServiceNotFound, RoleNameTaken, InvalidIdempotencyKey)>,
    )
)]
pub async fn create(
    call: Call,
    PathParams(service): PathParams<String>,
    idempotency: Result<IdempotencyHeader, ApiError>,
    body: BodyFields,
) -> Result<(StatusCode, Json<CreatedRole>), ApiError> {
    let (service, initiator) = call.require_manager_of(&service).await?;
    let NewRole { name, description, permissions, managed_by } = body.read()?;
    let request = RoleRequest { name, description: description.unwrap_or_default(), permissions, managed_by };
    let reply = IdempotentResponse { request: idempotency?.0, present: created_role };
    let created = operations::create_role(call.context(), &initiator, service, &request, &reply).await?;
    Ok((StatusCode::CREATED, Json(created.value)))
}

fn created_role(role: &Role) -> CreatedRole {
    let RoleDefinition { id, name, permissions, created_revision } = role.definition.clone();
    CreatedRole { role_id: id, name, permissions, revision: created_revision }
}

/// List the roles of a service
#[utoipa::path(
    get, path = "/services/{service}/roles", operation_id = "listRoles", tag = "Roles",
    params(ServicePathParam), security(("serviceKey" = []), ("humanToken" = [])),
    responses((status = 200, description = "All roles of the service, oldest first", body = RoleList), Errors<(ManagerAuth, ServiceNotFound)>)
)]
pub async fn list(call: Call, PathParams(service): PathParams<String>) -> Result<Json<RoleList>, ApiError> {
    let (service, _) = call.require_manager_of(&service).await?;
    let roles = operations::list_roles(call.context(), service).await?;
    Ok(Json(RoleList { data: roles.into_iter().map(role_record).collect() }))
}

/// Delete a role
///
/// All agents lose the role within a second. A role that is created later with the same name is a different role.
#[utoipa::path(
    delete, path = "/services/{service}/roles/{role}", operation_id = "deleteRole", tag = "Roles",
    params(ServicePathParam, RolePathParam), security(("serviceKey" = []), ("humanToken" = [])),
    responses((status = 200, description = "The role is deleted", body = RoleDeleted), Errors<(ManagerAuth, ServiceNotFound, RoleNotFound)>)
)]
pub async fn remove(
    call: Call,
    PathParams((service, role)): PathParams<(String, String)>,
) -> Result<Json<RoleDeleted>, ApiError> {
    let (service, initiator) = call.require_manager_of(&service).await?;
    let Changed { value: (), revision } =
        operations::delete_role(call.context(), &initiator, service, parse_id(&role)?).await?;
    Ok(Json(RoleDeleted { deleted: true, revision }))
}

/// Change a role
///
/// New permissions apply within a second to all agents that have the role. The name of a role cannot be changed, because tokens
/// contain the name.
#[utoipa::path(
    patch, path = "/services/{service}/roles/{role}", operation_id = "changeRole", tag = "Roles",
    params(ServicePathParam, RolePathParam), request_body = RoleChanges, security(("serviceKey" = []), ("humanToken" = [])),
    responses(
        (status = 200, description = "The changed role", body = ChangedRole),
        Errors<(ManagerAuth, InvalidBody, ServiceNotFound, RoleNotFound, PermissionLimit)>,
    )
)]
pub async fn change(
    call: Call,
    PathParams((service, role)): PathParams<(String, String)>,
    body: BodyFields,
) -> Result<Json<ChangedRole>, ApiError> {
    let (service, initiator) = call.require_manager_of(&service).await?;
    let RoleChanges { permissions, description, managed_by } = body.read()?;
    let change = RoleChange { permissions, description, managed_by };
    let Changed { value: role, revision } =
        operations::change_role(call.context(), &initiator, service, parse_id(&role)?, &change).await?;
    Ok(Json(ChangedRole { role: role_record(role), revision }))
}

/// Assign a role
///
/// The assignment applies within a second, also to tokens that were issued before. An expired assignment has no effect
/// anywhere.
#[utoipa::path(
    post, path = "/services/{service}/agents/{agent}/roles", operation_id = "assignRole", tag = "Roles",
    params(ServicePathParam, AgentPathParam), request_body = RoleAssignmentRequest,
    security(("serviceKey" = []), ("humanToken" = [])),
    responses(
        (status = 200, description = "The agent has the role", body = RoleAssignmentResponse),
        Errors<(ManagerAuth, InvalidBody, ServiceNotFound, AgentNotFound, RoleNotFound, RoleNameLimit, AgentHasLeft)>,
    )
)]
pub async fn assign(
    call: Call,
    PathParams((service, agent)): PathParams<(String, String)>,
    body: BodyFields,
) -> Result<Json<RoleAssignmentResponse>, ApiError> {
    let (service, initiator) = call.require_manager_of(&service).await?;
    let agent = parse_id(&agent)?;
    let RoleAssignmentRequest { role, expires_at, managed_by } = body.read()?;
    let request = AssignmentRequest { service, agent, role: role.parse()?, expires_at, managed_by };
    let Changed { value: (), revision } = operations::assign_role(call.context(), &initiator, request).await?;
    Ok(Json(RoleAssignmentResponse { assigned: true, revision }))
}

/// Revoke a role
///
/// The revocation applies within a second, also to tokens that contain the role.
#[utoipa::path(
    delete, path = "/services/{service}/agents/{agent}/roles/{role}", operation_id = "revokeRole", tag = "Roles",
    params(ServicePathParam, AgentPathParam, RolePathParam), security(("serviceKey" = []), ("humanToken" = [])),
    responses(
        (status = 200, description = "The agent does not have the role", body = RoleRevocationResponse),
        Errors<(ManagerAuth, ServiceNotFound, AgentNotFound, RoleNotFound)>,
    )
)]
pub async fn revoke(
    call: Call,
    PathParams((service, agent, role)): PathParams<(String, String, String)>,
) -> Result<Json<RoleRevocationResponse>, ApiError> {
    let (service, initiator) = call.require_manager_of(&service).await?;
    let Changed { value: revoked, revision } =
        operations::revoke_role(call.context(), &initiator, service, parse_id(&agent)?, parse_id(&role)?).await?;
    Ok(Json(RoleRevocationResponse { revoked, revision }))
}

fn role_record(role: Role) -> RoleRecord {
    let Role { definition, service: _, description, managed_by, created_at } = role;
    let RoleDefinition { id, name, permissions, created_revision: _ } = definition;
    RoleRecord { id, name, description, permissions, managed_by, created_at: Rfc3339(created_at) }
}
