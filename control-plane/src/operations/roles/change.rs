//! Changes the permissions or description of a role. The name of a role never changes, because tokens contain the name.

use super::define::permission_names;
use crate::{
    domain::{
        audit::{AuditAction, AuditedObject, Initiator, NewAuditEntry},
        change::{Change, Changed},
        role::{Role, check_service_limits},
        text::{Description, ManagedBy},
    },
    operations::{Context, NotFound, OperationError, authorize::lock_managed_service},
    store::{WriteTransaction, roles},
};
use countersign_identity::{Permission, RoleId, ServiceId};

/// The changes to make. `None` leaves a field unchanged.
#[derive(Debug, Clone)]
pub struct RoleChange {
    /// New permissions.
    pub permissions: Option<Vec<Permission>>,
    /// New description.
    pub description: Option<Description>,
    /// The new `managedBy` value.
    pub managed_by: Option<ManagedBy>,
}

/// Changes a role. New permissions apply to all agents with the role at once, because sidecars compute the permissions of
/// agents from role definitions.
pub async fn change_role(
    context: &Context,
    initiator: &Initiator,
    service: ServiceId,
    role: RoleId,
    change: &RoleChange,
) -> Result<Changed<Role>, OperationError> {
    let work = async |mut tx: WriteTransaction| {
        lock_managed_service(&mut tx, initiator, service).await?;
        let mut existing = roles::list(tx.conn(), service).await?;
        let position = existing.iter().position(|other| other.definition.id == role);
        let mut changed = existing.swap_remove(position.ok_or(OperationError::NotFound(NotFound::Role))?);
        let before = changed.clone();
        let RoleChange { permissions, description, managed_by } = change.clone();
        changed.description = description.unwrap_or(changed.description);
        changed.managed_by = managed_by.or(changed.managed_by);
        if let Some(permissions) = permissions {
            check_service_limits(&existing, &permissions)
                .map_err(|error| OperationError::Conflict(error.to_string()))?;
            changed.definition.permissions = permissions;
            tx.record_change(Change::Definitions(service));
        }
        roles::update(tx.conn(), &changed).await?;
        let entry = role_changed_entry(&before, &changed);
        if !entry.details.is_empty() {
            tx.audit(initiator, &entry).await?;
        }
        Ok(tx.commit_change(changed).await?)
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
