//! Deletes a role and all its assignments.

use crate::{
    domain::{
        audit::{AuditAction, AuditedObject, Initiator, NewAuditEntry},
        change::Change,
        webhook::event::{EventAudience, EventKind},
    },
    operations::{Context, NotFound, OperationError, authorize::lock_managed_service},
    store::{WriteTransaction, assignments, outbox, roles},
};
use countersign_identity::{RoleId, ServiceId};

/// Deletes a role and all its assignments. When a role is deleted, sidecars receive a single change, the removal of the role
/// definition. A role without a definition grants nothing, and a later role with the same name is a different role.
pub async fn delete_role(
    context: &Context,
    initiator: &Initiator,
    service: ServiceId,
    role: RoleId,
) -> Result<(), OperationError> {
    let work = async |mut tx: WriteTransaction| {
        lock_managed_service(&mut tx, initiator, service).await?;
        let role_before =
            roles::find(tx.conn(), service, role).await?.ok_or(OperationError::NotFound(NotFound::Role))?;
        let now = tx.now();
        // The webhook events for the agents with the deleted role are emitted later, in batches, to keep the transaction that
        // deletes the role short.
        let has_subscribers =
            outbox::has_recipients(tx.conn(), EventKind::RoleRevoked, EventAudience::Service(service)).await?;
        let event_role_name = has_subscribers.then_some(&role_before.definition.name);
        assignments::remove_by_role(tx.conn(), (service, role), event_role_name, now).await?;
        if !roles::delete(tx.conn(), service, role).await? {
            return Err(OperationError::NotFound(NotFound::Role));
        }
        let entry = NewAuditEntry::for_service(service, AuditAction::RoleDeleted).object(AuditedObject::Role(role));
        tx.audit(initiator, &entry.with_detail("name", role_before.definition.name.as_str())).await?;
        tx.record_change(Change::Definitions(service));
        Ok(tx.commit(()).await?)
    };
    context.store.write("delete_role", work).await
}
