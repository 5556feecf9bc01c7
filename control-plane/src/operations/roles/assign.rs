//! Assigns a role to an agent.

use crate::{
    domain::{
        audit::{AuditAction, AuditedObject, Initiator, NewAuditEntry},
        change::{Change, Changed},
        role::{Assignment, check_agent_limits},
        webhook::event::{Event, EventData, RevocationReason, RoleAssignedEvent},
    },
    operations::{
        Context, NotFound, OperationError, authorize::lock_managed_service,
        maintenance::expiry::emit_role_revoked_event,
    },
    store::{
        WriteTransaction, agents,
        assignments::{self, RoleRevocation},
        departures, roles,
    },
};
use countersign_identity::{AgentId, EventId, RoleId, ServiceId, Timestamp};

/// The role assignment to create.
#[derive(Debug, Clone, Copy)]
pub struct AssignmentRequest {
    /// Service that defines the role.
    pub service: ServiceId,
    /// Agent that gets the role.
    pub agent: AgentId,
    /// Role to assign.
    pub role: RoleId,
    /// Time of expiry; `None` for no expiry.
    pub expires_at: Option<Timestamp>,
}

/// Assigns a role, or replaces the expiry of the existing assignment. The expiry is truncated to whole seconds, the resolution
/// of times in tokens.
pub async fn assign_role(
    context: &Context,
    initiator: &Initiator,
    request: AssignmentRequest,
) -> Result<Changed<()>, OperationError> {
    let AssignmentRequest { service, agent, role, expires_at } = request;
    let expires_at = expires_at.map(Timestamp::truncated_to_second);
    let event = context.new_id(EventId::from_bits);
    let work = async |mut tx: WriteTransaction| {
        let now = tx.now();
        if expires_at.is_some_and(|end| end <= now) {
            return Err(OperationError::Invalid {
                field: "expiresAt",
                message: "must be in the future, in whole seconds",
            });
        }
        lock_managed_service(&mut tx, initiator, service).await?;
        agents::find(tx.conn(), agent).await?.ok_or(OperationError::NotFound(NotFound::Agent))?;
        if departures::has_left(tx.conn(), agent, service).await? {
            return Err(OperationError::AgentLeft);
        }
        let existing = roles::list(tx.conn(), service).await?;
        let current = assignments::list_active_grants(tx.conn(), service, agent, now).await?;
        let roles_after = existing.iter().filter(|other| {
            other.definition.id == role || current.iter().any(|grant| grant.role == other.definition.id)
        });
        let assigned = existing
            .iter()
            .find(|other| other.definition.id == role)
            .ok_or(OperationError::NotFound(NotFound::Role))?;
        check_agent_limits(roles_after.map(|role| &role.definition.name))
            .map_err(|error| OperationError::Conflict(error.to_string()))?;
        let name = assigned.definition.name.clone();
        // If an earlier assignment has expired and no event has reported the expiry, the event about the expiry comes before
        // the event about the new assignment.
        if let Some(at) = assignments::mark_expiry_reported(tx.conn(), agent, role, now).await? {
            let (name, reason) = (name.clone(), RevocationReason::Expired);
            emit_role_revoked_event(&mut tx, context, RoleRevocation { agent, service, role, name, at, reason });
        }
        assignments::upsert(tx.conn(), &Assignment { agent, role, service, assigned_at: now, expires_at }).await?;
        let previous_expiry = current.iter().find(|grant| grant.role == role).map(|grant| grant.until);
        if previous_expiry != Some(expires_at) {
            let entry = NewAuditEntry::for_service(service, AuditAction::RoleAssigned)
                .agent(agent)
                .object(AuditedObject::Role(role));
            let entry = entry
                .with_detail("name", assigned.definition.name.as_str())
                .with_detail("until", unix_seconds(expires_at));
            let entry = previous_expiry
                .into_iter()
                .fold(entry, |entry, end| entry.with_detail("untilBefore", unix_seconds(end)));
            tx.audit(initiator, &entry).await?;
            let (agent_id, service_id, role_id) = (agent, service, role);
            let data = RoleAssignedEvent { agent_id, service_id, role_id, role_name: name, expires_at };
            tx.emit(Event { id: event, at: now, data: EventData::RoleAssigned(data) });
        }
        tx.record_change(Change::Roles(agent, service));
        Ok(tx.commit_change(()).await?)
    };
    context.store.write("assign_role", work).await
}

/// The expiry as written in the audit log: Unix seconds or null.
fn unix_seconds(expires_at: Option<Timestamp>) -> Option<i64> {
    expires_at.map(Timestamp::seconds)
}
