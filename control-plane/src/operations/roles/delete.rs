//! Deletes a role and all its assignments.

use crate::{
    domain::{
        audit::{AuditAction, AuditedObject, Initiator, NewAuditEntry},
        change::{Change, Changed},
        role::name_of_deleted,
    },
    operations::{Context, NotFound, OperationError, authorize::lock_managed_service},
    store::{WriteTransaction, roles},
};
use countersign_identity::{RoleId, ServiceId};

/// Deletes a role. Takes effect at once: its assignments count nowhere, and a new role can have its name. When a role is deleted,
/// sidecars receive a single change, the removal of the role definition. A role without a definition grants nothing, and a later
/// role with the same name is a different role.
///
/// A role can have any number of assignments, so background work removes them, and emits the event of each.
pub async fn delete_role(
    context: &Context,
    initiator: &Initiator,
    service: ServiceId,
    role: RoleId,
) -> Result<Changed<()>, OperationError> {
    // Managers of the service cannot predict the name, so they cannot create a role with it before.
    let free_name = &name_of_deleted(context.new_id(RoleId::from_bits));
    let work = async |mut tx: WriteTransaction| {
        lock_managed_service(&mut tx, initiator, service).await?;
        let role_before =
            roles::find(tx.conn(), service, role).await?.ok_or(OperationError::NotFound(NotFound::Role))?;
        let now = tx.now();
        if !roles::mark_deleted(tx.conn(), service, role, free_name, now).await? {
            return Err(OperationError::NotFound(NotFound::Role));
        }
        let entry = NewAuditEntry::for_service(service, AuditAction::RoleDeleted).object(AuditedObject::Role(role));
        tx.audit(initiator, &entry.with_detail("name", role_before.definition.name.as_str())).await?;
        tx.record_change(Change::Definitions(service));
        Ok(tx.commit_change(()).await?)
    };
    context.store.write("delete_role", work).await
}
