//! Assigns roles to agents and revokes them.

use crate::{
    domain::{
        audit::{AuditAction, AuditedObject, Initiator, NewAuditEntry},
        change::{Change, Changed},
        role::{Assignment, check_agent_limits, token_bytes},
        text::ManagedBy,
        webhook::event::{Event, EventData, RevocationReason, RoleAssignedEvent, RoleRevokedEvent},
    },
    operations::{
        Context, NotFound, OperationError,
        authorize::lock_managed_service,
        find::{find_agent, find_role},
    },
    store::{
        WriteTransaction,
        assignments::{self, ManagedGrant, RemovedAssignment},
        departures, roles,
    },
};
use countersign_identity::{AgentId, EventId, RoleId, RoleName, ServiceId, Timestamp};

#[derive(Debug, Clone)]
pub struct AssignmentRequest {
    pub service: ServiceId,
    pub agent: AgentId,
    pub role: RoleId,
    pub expires_at: Option<Timestamp>,
    /// The label of the declaration files that manage the assignment (`managedBy`); `None` keeps the label of an existing assignment.
    pub managed_by: Option<ManagedBy>,
}

/// Assigns a role, or replaces the expiry of the existing assignment. Tokens contain whole seconds, so we cut the expiry to these.
/// Returns about how many bytes an access token of the agent can have from now on.
pub async fn assign_role(
    context: &Context,
    initiator: &Initiator,
    request: AssignmentRequest,
) -> Result<Changed<usize>, OperationError> {
    let request = &AssignmentRequest { expires_at: request.expires_at.map(Timestamp::truncated_to_second), ..request };
    let AssignmentRequest { service, agent, role, expires_at, .. } = *request;
    let event_id = context.new_id(EventId::from_bits);
    let work = async |mut tx: WriteTransaction| {
        lock_managed_service(&mut tx, initiator, service).await?;
        let now = tx.now();
        if expires_at.is_some_and(|end| end <= now) {
            let message = "must be in the future, in whole seconds";
            return Err(OperationError::Invalid { field: "expiresAt", message });
        }
        let agent_name = find_agent(tx.conn(), agent).await?.registration.name;
        if departures::contains(tx.conn(), agent, service).await? {
            return Err(OperationError::AgentLeft);
        }
        let roles = roles::list(tx.conn(), service).await?;
        let definition = |id| roles.iter().map(|role| &role.definition).find(|definition| definition.id == id);
        let assigned = definition(role).ok_or(NotFound::Role)?;
        let name = &assigned.name;
        let grants = assignments::list_active_grants_of_agents(tx.conn(), service, &[agent], now).await?;
        let (existing, others): (Vec<_>, Vec<_>) =
            grants.into_iter().map(|(_, held)| held).partition(|held| held.grant.role == role);
        let held = others.iter().filter_map(|held| definition(held.grant.role)).chain([assigned]);
        // An assignment may always become shorter, even if the agent was above the limit before.
        if existing.first().is_none_or(|held| ends_later(expires_at, held.grant.until)) {
            check_agent_limits(held.clone().map(|definition| &definition.name))?;
        }
        let token_bytes = token_bytes(&context.config.issuer, agent_name.as_str(), held);

        // An earlier assignment may have expired without an event so far. Its event must come before the event of the new one.
        let unreported_expiry = assignments::mark_expiry_reported(tx.conn(), agent, role, now).await?;
        let managed_by = request.managed_by.clone();
        let assignment = Assignment { agent, role, service, assigned_at: now, expires_at, managed_by };
        assignments::upsert(tx.conn(), &assignment).await?;
        if let Some(entry) = role_assigned_entry(&assignment, name, existing.first()) {
            tx.audit(initiator, &entry).await?;
        }
        if let Some(at) = unreported_expiry {
            let (role_name, reason) = (name.clone(), RevocationReason::Expired);
            let data = RoleRevokedEvent { agent_id: agent, service_id: service, role_id: role, role_name, reason };
            tx.emit(Event { id: id_before(event_id), at, data: EventData::RoleRevoked(data) });
        }
        if existing.first().map(|held| held.grant.until) != Some(expires_at) {
            tx.emit(role_assigned_event(event_id, &assignment, name.clone()));
        }
        tx.record_change(Change::Roles(agent, service));
        Ok(tx.commit_change(token_bytes).await?)
    };
    context.store.write("assign_role", work).await
}

/// Revokes a role. Returns false if the agent did not hold the role.
pub async fn revoke_role(
    context: &Context,
    initiator: &Initiator,
    service: ServiceId,
    agent: AgentId,
    role: RoleId,
) -> Result<Changed<bool>, OperationError> {
    let event_id = context.new_id(EventId::from_bits);
    let work = async |mut tx: WriteTransaction| {
        lock_managed_service(&mut tx, initiator, service).await?;
        find_agent(tx.conn(), agent).await?;
        let role_name = find_role(tx.conn(), service, role).await?.definition.name;
        let Some(removed) = assignments::remove(tx.conn(), service, agent, role).await? else {
            return Ok(tx.commit_change(false).await?);
        };
        let RemovedAssignment { expires_at, expiry_reported } = removed;
        let now = tx.now();
        // An expired assignment counts as absent, so removing it is no revocation, and writes no audit entry.
        let ended = expires_at.filter(|end| *end <= now);
        let reason = if ended.is_some() { RevocationReason::Expired } else { RevocationReason::Revoked };
        let data = RoleRevokedEvent { agent_id: agent, service_id: service, role_id: role, role_name, reason };
        if ended.is_none() {
            tx.audit(initiator, &role_revoked_entry(&data)).await?;
        }
        if !expiry_reported {
            tx.emit(Event { id: event_id, at: ended.unwrap_or(now), data: EventData::RoleRevoked(data) });
        }
        tx.record_change(Change::Roles(agent, service));
        Ok(tx.commit_change(ended.is_none()).await?)
    };
    context.store.write("revoke_role", work).await
}

/// Whether an assignment that ends at `end` lasts longer than one that ends at `other`. `None` stands for one that does not expire.
fn ends_later(end: Option<Timestamp>, other: Option<Timestamp>) -> bool {
    other.is_some_and(|other| end.is_none_or(|end| end > other))
}

/// An event id that is lower than `id`, for an event that must be delivered first: the order of ids is the order of delivery.
const fn id_before(id: EventId) -> EventId {
    EventId::from_bits(id.bits() - 1)
}

fn role_assigned_event(id: EventId, assignment: &Assignment, role_name: RoleName) -> Event {
    let Assignment { agent: agent_id, service: service_id, role: role_id, assigned_at, expires_at, .. } = *assignment;
    let data = RoleAssignedEvent { agent_id, service_id, role_id, role_name, expires_at };
    Event { id, at: assigned_at, data: EventData::RoleAssigned(data) }
}

/// The audit entry for an assignment. `None` if nothing changes: the agent already holds the role with this expiry, and the assignment
/// keeps its `managedBy`.
fn role_assigned_entry(
    assignment: &Assignment,
    name: &RoleName,
    existing: Option<&ManagedGrant>,
) -> Option<NewAuditEntry> {
    let Assignment { agent, service, role, expires_at, ref managed_by, .. } = *assignment;
    let managed_by_before = existing.and_then(|held| held.managed_by.as_ref());
    let gets_label = managed_by.is_some() && managed_by.as_ref() != managed_by_before;
    let until_before = existing.map(|held| held.grant.until);
    if until_before == Some(expires_at) && !gets_label {
        return None;
    }
    let mut entry = NewAuditEntry::for_service(service, AuditAction::RoleAssigned)
        .agent(agent)
        .object(AuditedObject::Role(role))
        .with_detail("name", name.as_str())
        .with_detail("until", expires_at.map(Timestamp::seconds));
    if let Some(until) = until_before {
        entry = entry.with_detail("untilBefore", until.map(Timestamp::seconds));
    }
    Some(if gets_label { entry.managed_by_if_changed(managed_by_before, managed_by.as_ref()) } else { entry })
}

/// The audit entry for the end of an assignment, the counterpart of `role.assigned`.
pub(in crate::operations) fn role_revoked_entry(ended: &RoleRevokedEvent) -> NewAuditEntry {
    NewAuditEntry::for_service(ended.service_id, AuditAction::RoleRevoked)
        .agent(ended.agent_id)
        .object(AuditedObject::Role(ended.role_id))
        .with_detail("name", ended.role_name.as_str())
}

/// Emits the event `agent.role_revoked` for an assignment that ended at the time `at`.
pub(in crate::operations) fn emit_role_revoked(
    tx: &mut WriteTransaction,
    context: &Context,
    at: Timestamp,
    ended: RoleRevokedEvent,
) {
    tx.emit(Event { id: context.new_id(EventId::from_bits), at, data: EventData::RoleRevoked(ended) });
}
