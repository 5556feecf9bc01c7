//! Deletes a role and all its assignments.

use crate::{
    domain::{
        audit::{AuditAction, Initiator, NewAuditEntry, Object},
        change::Change,
        webhook::event::{EventAudience, EventKind},
    },
    operations::{Context, NotFound, OperationError},
    store::{Write, assignments, outbox, roles, services},
};
use countersign_identity::{RoleId, ServiceId};

/// Deletes a role and all its assignments. Sidecars receive one change, independent of the number of holders: the role is no
/// longer defined. An undefined role grants nothing, and a later role of the same name is a different role.
pub async fn delete_role(
    context: &Context,
    by: &Initiator,
    service: ServiceId,
    role: RoleId,
) -> Result<(), OperationError> {
    let work = async |mut tx: Write| {
        if !services::lock(tx.conn(), service).await? {
            return Err(OperationError::NotFound(NotFound::Service));
        }
        let found = roles::find(tx.conn(), service, role).await?.ok_or(OperationError::NotFound(NotFound::Role))?;
        let (now, audience) = (tx.now(), EventAudience::Service(service));
        // The events for the holders are emitted later, in batches, so that a role with many holders does not block.
        let has_subscribers = outbox::has_recipients(tx.conn(), EventKind::RoleRevoked, audience, now).await?;
        let event_role_name = has_subscribers.then_some(&found.definition.name);
        assignments::remove_by_role(tx.conn(), (service, role), event_role_name, now).await?;
        if !roles::delete(tx.conn(), service, role).await? {
            return Err(OperationError::NotFound(NotFound::Role));
        }
        let entry = NewAuditEntry::for_service(service, AuditAction::RoleDeleted).object(Object::Role(role));
        tx.audit(by, &entry.detail("name", found.definition.name.as_str())).await?;
        tx.record_change(Change::Definitions(service));
        Ok(tx.commit(()).await?)
    };
    context.store.write("delete_role", work).await
}
