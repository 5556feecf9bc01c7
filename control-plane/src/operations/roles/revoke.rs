//! Revokes a role from an agent.

use crate::{
    domain::{
        audit::{AuditAction, AuditedObject, Initiator, NewAuditEntry},
        change::{Change, Changed},
        webhook::event::RevocationReason,
    },
    operations::{
        Context, NotFound, OperationError, authorize::lock_managed_service,
        maintenance::expiry::emit_role_revoked_event,
    },
    store::{
        WriteTransaction, agents,
        assignments::{self, RemovedAssignment, RoleRevocation},
        roles,
    },
};
use countersign_identity::{AgentId, RoleId, RoleName, ServiceId};

/// Revokes a role. Returns false if the agent did not hold the role.
pub async fn revoke_role(
    context: &Context,
    initiator: &Initiator,
    service: ServiceId,
    agent: AgentId,
    role: RoleId,
) -> Result<Changed<bool>, OperationError> {
    let work = async |mut tx: WriteTransaction| {
        let now = tx.now();
        lock_managed_service(&mut tx, initiator, service).await?;
        agents::find(tx.conn(), agent).await?.ok_or(OperationError::NotFound(NotFound::Agent))?;
        let existing_role =
            roles::find(tx.conn(), service, role).await?.ok_or(OperationError::NotFound(NotFound::Role))?;
        let removed = assignments::remove(tx.conn(), service, agent, role).await?;
        let name = existing_role.definition.name;
        if removed.is_some() {
            tx.record_change(Change::Roles(agent, service));
        }
        // An expired role assignment counts as absent. The removal of an expired role assignment revokes nothing, and emits an
        // event only if no event about the expiry was emitted yet.
        let was_live = removed.is_some_and(|removed| removed.expires_at.is_none_or(|end| now < end));
        if was_live {
            tx.audit(initiator, &role_revoked_entry(service, agent, role, &name)).await?;
        }
        if let Some(RemovedAssignment { expires_at: until, expiry_reported: false }) = removed {
            let (at, reason) = match until {
                Some(end) if !was_live => (end, RevocationReason::Expired),
                Some(_) | None => (now, RevocationReason::Revoked),
            };
            emit_role_revoked_event(&mut tx, context, RoleRevocation { agent, service, role, name, at, reason });
        }
        Ok(tx.commit_change(was_live).await?)
    };
    context.store.write("revoke_role", work).await
}

/// The audit entry for the end of an assignment, which ends what the entry `role.assigned` began.
pub(in crate::operations) fn role_revoked_entry(
    service: ServiceId,
    agent: AgentId,
    role: RoleId,
    name: &RoleName,
) -> NewAuditEntry {
    NewAuditEntry::for_service(service, AuditAction::RoleRevoked)
        .agent(agent)
        .object(AuditedObject::Role(role))
        .with_detail("name", name.as_str())
}
