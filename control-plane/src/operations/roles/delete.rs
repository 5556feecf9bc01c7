//! Delete a role, whoever holds it.

use crate::{
    domain::{
        audit::{AuditAction, Initiator, NewAuditEntry, Object},
        change::Change,
        webhook::event::{Concerns, EventKind},
    },
    operations::{Context, NotFound, OperationError},
    store::{Write, assignments, outbox, roles, services},
};
use countersign_identity::{RoleId, ServiceId};

/// Deletes a role with all its assignments. Sidecars learn one thing, however many hold it: that it is no longer
/// defined. A role that is not defined grants nothing, and a later one of the same name is another role.
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
        let (now, concerns) = (tx.now(), Concerns::Service(service));
        // However many hold it: whoever asked is told of each, a little later.
        let wanted = outbox::is_wanted(tx.conn(), EventKind::RoleRevoked, concerns, now).await?;
        let told_as = wanted.then_some(&found.definition.name);
        assignments::remove_by_role(tx.conn(), (service, role), told_as, now).await?;
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
