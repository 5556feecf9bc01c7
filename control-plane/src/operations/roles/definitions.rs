//! The roles of a service: creates, lists, changes and deletes them. The name of a role never changes, because tokens contain it.

use crate::{
    domain::{
        audit::{AuditAction, AuditedObject, Initiator, NewAuditEntry},
        change::{Change, Changed},
        role::{Role, check_new_permissions, check_service_limits, name_of_deleted},
        text::{Description, ManagedBy},
    },
    operations::{
        Context, IdempotentResponse, NotFound, OperationError,
        authorize::lock_managed_service,
        find::{find_role, find_service},
    },
    store::{WriteTransaction, roles},
};
use countersign_identity::{Permission, RoleDefinition, RoleId, RoleName, ServiceId};
use serde::{Serialize, de::DeserializeOwned};

#[derive(Debug, Clone)]
pub struct RoleRequest {
    pub name: RoleName,
    pub description: Description,
    pub permissions: Vec<Permission>,
    /// The label of the declaration files that manage the role (`managedBy`), if any.
    pub managed_by: Option<ManagedBy>,
}

/// Creates a role. `reply` makes the response. If the request has an idempotency key, the response is stored, and a repeated
/// request gets it again. Returns the response and the revision of the creation, or with the stored response the newest revision.
pub async fn create_role<R: Serialize + DeserializeOwned>(
    context: &Context,
    initiator: &Initiator,
    service: ServiceId,
    request: &RoleRequest,
    reply: &IdempotentResponse<Role, R>,
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
        check_service_limits(&existing, permissions)?;
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

/// Lists all roles of a service, oldest first.
pub async fn list_roles(context: &Context, service: ServiceId) -> Result<Vec<Role>, OperationError> {
    let mut read = context.store.read().await?;
    find_service(read.conn(), service).await?;
    Ok(roles::list(read.conn(), service).await?)
}

/// The changes to make to a role. `None` leaves a field unchanged.
#[derive(Debug, Clone)]
pub struct RoleChange {
    pub permissions: Option<Vec<Permission>>,
    pub description: Option<Description>,
    pub managed_by: Option<ManagedBy>,
}

/// Changes a role. New permissions apply to all agents with the role at once, because sidecars look them up in the role definition.
pub async fn change_role(
    context: &Context,
    initiator: &Initiator,
    service: ServiceId,
    role: RoleId,
    change: &RoleChange,
) -> Result<Changed<Role>, OperationError> {
    let work = async |mut tx: WriteTransaction| {
        lock_managed_service(&mut tx, initiator, service).await?;
        let mut roles = roles::list(tx.conn(), service).await?;
        let position = roles.iter().position(|other| other.definition.id == role);
        let before = roles.swap_remove(position.ok_or(NotFound::Role)?);
        let other_roles = roles;
        let mut after = before.clone();
        let RoleChange { permissions, description, managed_by } = change.clone();
        after.description = description.unwrap_or(after.description);
        after.managed_by = managed_by.or(after.managed_by);
        if let Some(permissions) = permissions {
            check_new_permissions(&other_roles, &before.definition.permissions, &permissions)?;
            after.definition.permissions = permissions;
            tx.record_change(Change::Definitions(service));
        }
        roles::update(tx.conn(), &after).await?;
        let entry = role_changed_entry(&before, &after);
        if !entry.details.is_empty() {
            tx.audit(initiator, &entry).await?;
        }
        Ok(tx.commit_change(after).await?)
    };
    context.store.write("change_role", work).await
}

/// The audit entry for the change of a role, with the fields that differ.
fn role_changed_entry(before: &Role, after: &Role) -> NewAuditEntry {
    let (old, new) = (&before.definition, &after.definition);
    NewAuditEntry::for_service(after.service, AuditAction::RoleChanged)
        .object(AuditedObject::Role(new.id))
        .detail_if_changed("permissions", permission_names(&old.permissions), permission_names(&new.permissions))
        .detail_if_changed("description", before.description.as_str(), after.description.as_str())
        .managed_by_if_changed(before.managed_by.as_ref(), after.managed_by.as_ref())
}

/// Deletes a role. This takes effect at once: its assignments count nowhere, and a new role can have its name. Sidecars receive a
/// single change, which removes the role definition. A role without a definition grants nothing.
///
/// A role can have any number of assignments, so background work removes them later, and emits an event for each.
pub async fn delete_role(
    context: &Context,
    initiator: &Initiator,
    service: ServiceId,
    role: RoleId,
) -> Result<Changed<()>, OperationError> {
    // The deleted role gets this name, so that its name is free for a new role. Nobody can predict it, so no role has it already.
    let name_after_deletion = &name_of_deleted(context.new_id(RoleId::from_bits));
    let work = async |mut tx: WriteTransaction| {
        lock_managed_service(&mut tx, initiator, service).await?;
        let before = find_role(tx.conn(), service, role).await?;
        let now = tx.now();
        if !roles::mark_deleted(tx.conn(), service, role, name_after_deletion, now).await? {
            return Err(NotFound::Role.into());
        }
        let entry = NewAuditEntry::for_service(service, AuditAction::RoleDeleted).object(AuditedObject::Role(role));
        tx.audit(initiator, &entry.with_detail("name", before.definition.name.as_str())).await?;
        tx.record_change(Change::Definitions(service));
        Ok(tx.commit_change(()).await?)
    };
    context.store.write("delete_role", work).await
}

/// The names of permissions, as written in the audit log.
fn permission_names(permissions: &[Permission]) -> Vec<&str> {
    permissions.iter().map(Permission::as_str).collect()
}
