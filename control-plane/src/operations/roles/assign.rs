//! Assigns a role to an agent.

use crate::{
    domain::{
        audit::{AuditAction, Initiator, NewAuditEntry, Object},
        change::Change,
        role::{Assignment, check_agent_limits},
        webhook::event::{Event, EventData, RevocationReason, RoleAssigned},
    },
    operations::{Context, NotFound, OperationError, maintenance::expiry::emit_role_revoked},
    store::{
        Write, agents,
        assignments::{self, RoleLoss},
        roles, services,
    },
};
use countersign_identity::{AgentId, EventId, RoleId, ServiceId, Timestamp};

/// A role assignment to make.
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

/// Assigns a role. Assigning it again replaces the expiry. The expiry is truncated to whole seconds, the resolution of tokens.
pub async fn assign_role(context: &Context, by: &Initiator, request: AssignmentRequest) -> Result<(), OperationError> {
    let AssignmentRequest { service, agent, role, expires_at } = request;
    let expires_at = expires_at.map(Timestamp::truncated_to_second);
    let event = context.new_id(EventId::from_bits);
    let work = async |mut tx: Write| {
        let now = tx.now();
        if expires_at.is_some_and(|end| end <= now) {
            return Err(OperationError::Invalid {
                field: "expiresAt",
                message: "must be in the future, in whole seconds",
            });
        }
        services::lock(tx.conn(), service).await?;
        agents::find(tx.conn(), agent).await?.ok_or(OperationError::NotFound(NotFound::Agent))?;
        let existing = roles::list(tx.conn(), service).await?;
        let current = assignments::active_grants(tx.conn(), service, agent, now).await?;
        let after = existing.iter().filter(|other| {
            other.definition.id == role || current.iter().any(|grant| grant.role == other.definition.id)
        });
        let assigned = existing
            .iter()
            .find(|other| other.definition.id == role)
            .ok_or(OperationError::NotFound(NotFound::Role))?;
        check_agent_limits(after.map(|role| &role.definition.name))
            .map_err(|error| OperationError::Conflict(error.to_string()))?;
        let name = assigned.definition.name.clone();
        // An earlier assignment may have expired without an event yet: emit that event first.
        if let Some(at) = assignments::mark_expiry_notified(tx.conn(), agent, role, now).await? {
            let (name, reason) = (name.clone(), RevocationReason::Expired);
            emit_role_revoked(&mut tx, context, RoleLoss { agent, service, role, name, at, reason });
        }
        assignments::upsert(tx.conn(), &Assignment { agent, role, service, assigned_at: now, expires_at }).await?;
        let before = current.iter().find(|grant| grant.role == role).map(|grant| grant.until);
        if before != Some(expires_at) {
            let entry =
                NewAuditEntry::for_service(service, AuditAction::RoleAssigned).agent(agent).object(Object::Role(role));
            let entry = entry.detail("name", assigned.definition.name.as_str()).detail("until", seconds(expires_at));
            let entry = before.into_iter().fold(entry, |entry, end| entry.detail("untilBefore", seconds(end)));
            tx.audit(by, &entry).await?;
            let (agent_id, service_id, role_id) = (agent, service, role);
            let data = RoleAssigned { agent_id, service_id, role_id, role_name: name, expires_at };
            tx.emit(Event { id: event, at: now, data: EventData::RoleAssigned(data) });
        }
        tx.record_change(Change::Roles(agent, service));
        Ok(tx.commit(()).await?)
    };
    context.store.write("assign_role", work).await
}

/// The expiry as written in the audit log: Unix seconds or null.
fn seconds(end: Option<Timestamp>) -> Option<i64> {
    end.map(Timestamp::seconds)
}
