//! Creates and lists the roles of a service.

use crate::{
    domain::{
        audit::{AuditAction, AuditedObject, Initiator, NewAuditEntry},
        change::{Change, Changed},
        role::{Role, check_service_limits},
        text::{Description, ManagedBy},
    },
    operations::{Context, IdempotentReply, NotFound, OperationError, authorize::lock_managed_service},
    store::{WriteTransaction, roles, services},
};
use countersign_identity::{Permission, RoleDefinition, RoleId, RoleName, ServiceId};
use serde::{Serialize, de::DeserializeOwned};

/// The role to create.
#[derive(Debug, Clone)]
pub struct RoleRequest {
    /// Name, unique at the service.
    pub name: RoleName,
    /// Description for human readers.
    pub description: Description,
    /// Permissions that the role grants.
    pub permissions: Vec<Permission>,
    /// The name of the files in which the role is declared, if any.
    pub managed_by: Option<ManagedBy>,
}

/// Creates a role. The name of a role is unique at its service and never changes. The revision is that of the creation, or the
/// newest one for a stored response.
pub async fn create_role<R: Serialize + DeserializeOwned>(
    context: &Context,
    initiator: &Initiator,
    service: ServiceId,
    request: &RoleRequest,
    reply: &IdempotentReply<Role, R>,
) -> Result<Changed<R>, OperationError> {
    let idempotency = &reply.guard(initiator, &["create_role", &service.to_string()]);
    let id = context.new_id(RoleId::from_bits);
    let RoleRequest { name, description, permissions, managed_by } = request;
    let entry = &NewAuditEntry::for_service(service, AuditAction::RoleCreated)
        .object(AuditedObject::Role(id))
        .with_detail("name", name.as_str())
        .with_detail("description", description.as_str())
        .with_detail("permissions", permission_names(permissions))
        .managed_by_if_changed(None, managed_by.as_ref());
    let work = async |mut tx: WriteTransaction| {
        if let Some(response) = idempotency.stored_response(&mut tx).await? {
            return Ok(tx.commit_change(response).await?);
        }
        lock_managed_service(&mut tx, initiator, service).await?;
        let existing = roles::list(tx.conn(), service).await?;
        check_service_limits(&existing, permissions).map_err(|error| OperationError::Conflict(error.to_string()))?;
        tx.audit(initiator, entry).await?;
        let created_revision = tx.revision().await?;
        let definition = RoleDefinition { id, name: name.clone(), permissions: permissions.clone(), created_revision };
        let (description, managed_by) = (description.clone(), managed_by.clone());
        let role = Role { definition, service, description, managed_by, created_at: tx.now() };
        if !roles::insert(tx.conn(), &role).await? {
            return Err(OperationError::Conflict(format!("the service already has a role named `{name}`")));
        }
        tx.record_change(Change::Definitions(service));
        let response = idempotency.store_response(&mut tx, &role).await?;
        Ok(tx.commit_change(response).await?)
    };
    context.store.write("create_role", work).await
}

/// The names of permissions, as written in the audit log.
pub(in crate::operations) fn permission_names(permissions: &[Permission]) -> Vec<&str> {
    permissions.iter().map(Permission::as_str).collect()
}

/// Lists all roles of a service, oldest first.
pub async fn list_roles(context: &Context, service: ServiceId) -> Result<Vec<Role>, OperationError> {
    let mut read = context.store.read().await?;
    services::find_live(read.conn(), service).await?.ok_or(OperationError::NotFound(NotFound::Service))?;
    Ok(roles::list(read.conn(), service).await?)
}
