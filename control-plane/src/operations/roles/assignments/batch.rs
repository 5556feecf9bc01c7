//! Changes of assignments that one transaction makes.
//!
//! The transaction locks the service, reads what the decisions depend on, decides each change, and writes all that are allowed. A
//! refused change does not affect the others.

use super::role_revoked_entry;
use crate::{
    domain::{
        audit::{Actor, AuditAction, AuditChain, AuditedObject, Initiator, NewAuditEntry},
        change::{Change, Changed},
        role::{Assignment, check_agent_limits},
        text::ManagedBy,
        webhook::event::{Event, EventData, RevocationReason, RoleAssignedEvent},
    },
    operations::{
        Context, NotFound, OperationError,
        authorize::recheck_manager,
        maintenance::expiry::role_revoked_event,
        request_batches::{Attempt, BatchError, BatchedRequest, RequestQueues, RequestResult},
    },
    store::{
        StoreError, WriteTransaction, agents,
        assignments::{self, AgentAndRole, ManagedGrant, RemovedAssignment, RoleRevocation},
        departures, roles, services,
    },
};
use countersign_identity::{AgentId, EventId, Reason, RoleId, RoleName, ServiceId, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use tracing::Span;

/// A change of an assignment.
#[derive(Debug)]
pub struct AssignmentChange {
    /// Who asked for the change.
    pub initiator: Initiator,
    /// The agent.
    pub agent: AgentId,
    /// The role.
    pub role: RoleId,
    /// What the agent shall have.
    pub new: NewState,
    /// The id of the event about the change. The event about an earlier expiry gets an id before it.
    pub event: EventId,
}

/// The state of an assignment after a change.
#[derive(Debug, Clone)]
pub enum NewState {
    /// The agent has the role.
    Assigned {
        /// Time of expiry, in whole seconds; `None` for no expiry.
        expires_at: Option<Timestamp>,
        /// The name of the files that state the assignment; `None` leaves that of the existing assignment.
        managed_by: Option<ManagedBy>,
    },
    /// The agent does not have the role.
    Revoked,
}

/// The result of a change: whether there was something to change.
type ChangeResult = Result<bool, OperationError>;

impl BatchedRequest for AssignmentChange {
    type Key = ServiceId;
    type Output = Changed<bool>;

    fn queues(context: &Context) -> &RequestQueues<Self> {
        &context.assignment_queues
    }

    fn span(service: ServiceId) -> Span {
        tracing::info_span!(parent: None, "role changes", %service)
    }

    fn exclusive_agent(&self) -> Option<AgentId> {
        Some(self.agent)
    }

    async fn fulfill(
        context: &Context,
        service: ServiceId,
        changes: &[Self],
        attempt: Attempt,
    ) -> Result<Vec<Option<RequestResult<Self>>>, BatchError> {
        let work = async |mut tx: WriteTransaction| {
            let Some(current) = Current::lock_and_read(&mut tx, service, changes).await? else {
                let refusals = changes.iter().map(|_| Some(OperationError::NotFound(NotFound::Service)));
                return Err(BatchError::Refused(refusals.collect()));
            };
            let decisions: Vec<_> = changes.iter().map(|change| current.decide(change, tx.now())).collect();
            if decisions.iter().all(Result::is_err) {
                return Err(BatchError::Refused(decisions.into_iter().map(Result::err).collect()));
            }
            let results = write(&mut tx, service, changes.iter().zip(decisions).collect()).await?;
            Ok(tx.commit_change(results).await?)
        };
        let Changed { value: results, revision } =
            context.store.write_until(attempt.deadline, "change_assignments", work).await?;
        let with_revision = |value| Changed { value, revision };
        Ok(results.into_iter().map(|result| Some(result.map(with_revision))).collect())
    }
}

/// What the decisions depend on.
struct Current {
    /// The initiators who may manage the service, and the reasons why the others may not.
    initiators: Vec<(Actor, Result<(), Reason>)>,
    existing_agents: BTreeSet<AgentId>,
    departed_agents: BTreeSet<AgentId>,
    roles: BTreeMap<RoleId, RoleName>,
    /// The roles that the agents hold that get a role.
    grants: BTreeMap<AgentId, Vec<ManagedGrant>>,
}

/// An allowed change.
struct Allowed {
    /// The name of the role.
    name: RoleName,
    /// The existing assignment, for an assignment.
    existing: Option<ManagedGrant>,
}

impl Current {
    /// Locks the service until the transaction ends, and reads. Returns `None` if there is no such service.
    async fn lock_and_read(
        tx: &mut WriteTransaction,
        service: ServiceId,
        changes: &[AssignmentChange],
    ) -> Result<Option<Self>, StoreError> {
        let (now, conn) = (tx.now(), tx.conn());
        let Some(locked) = services::lock(conn, service).await? else { return Ok(None) };
        let mut initiators: Vec<(Actor, Result<(), Reason>)> = Vec::new();
        for actor in changes.iter().map(|change| &change.initiator.actor) {
            if !initiators.iter().any(|(known, _)| known == actor) {
                initiators.push((actor.clone(), recheck_manager(conn, actor, &locked).await?));
            }
        }
        let agents: Vec<_> = changes.iter().map(|change| change.agent).collect();
        let is_assignment = |change: &&AssignmentChange| matches!(change.new, NewState::Assigned { .. });
        let assigned: Vec<_> = changes.iter().filter(is_assignment).map(|change| change.agent).collect();
        let mut grants: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (agent, grant) in assignments::list_active_grants_of_agents(conn, service, &assigned, now).await? {
            grants.entry(agent).or_default().push(grant);
        }
        Ok(Some(Self {
            initiators,
            existing_agents: agents::list_existing(conn, &agents).await?.into_iter().collect(),
            departed_agents: departures::list_departed(conn, service, &assigned).await?.into_iter().collect(),
            roles: roles::list_names(conn, service).await?,
            grants,
        }))
    }

    /// Decides whether a change is allowed.
    fn decide(&self, change: &AssignmentChange, now: Timestamp) -> Result<Allowed, OperationError> {
        let AssignmentChange { initiator, agent, role, new, event: _ } = change;
        if let NewState::Assigned { expires_at: Some(end), .. } = new
            && *end <= now
        {
            let message = "must be in the future, in whole seconds";
            return Err(OperationError::Invalid { field: "expiresAt", message });
        }
        let may_manage = self.initiators.iter().find(|(actor, _)| *actor == initiator.actor);
        may_manage.map_or(Err(Reason::NotYours), |(_, result)| *result)?;
        if !self.existing_agents.contains(agent) {
            return Err(OperationError::NotFound(NotFound::Agent));
        }
        if self.departed_agents.contains(agent) {
            return Err(OperationError::AgentLeft);
        }
        let name = self.roles.get(role).ok_or(OperationError::NotFound(NotFound::Role))?;
        let NewState::Assigned { .. } = new else { return Ok(Allowed { name: name.clone(), existing: None }) };
        let grants = self.grants.get(agent).map_or(&[][..], Vec::as_slice);
        let held = grants.iter().map(|held| held.grant.role).filter(|held| held != role);
        let held = held.filter_map(|role| self.roles.get(&role));
        check_agent_limits(held.chain([name])).map_err(|error| OperationError::Conflict(error.to_string()))?;
        let existing = grants.iter().find(|held| held.grant.role == *role).cloned();
        Ok(Allowed { name: name.clone(), existing })
    }
}

/// Writes the allowed changes. Returns the result of each change.
async fn write(
    tx: &mut WriteTransaction,
    service: ServiceId,
    decided: Vec<(&AssignmentChange, Result<Allowed, OperationError>)>,
) -> Result<Vec<ChangeResult>, StoreError> {
    let now = tx.now();
    let allowed = || decided.iter().filter(|(_, decision)| decision.is_ok()).map(|(change, _)| *change);
    let (mut new, mut revoked) = (Vec::new(), Vec::new());
    for AssignmentChange { agent, role, new: state, .. } in allowed() {
        match state {
            NewState::Assigned { expires_at, managed_by } => {
                let (expires_at, managed_by) = (*expires_at, managed_by.clone());
                new.push(Assignment { agent: *agent, role: *role, service, assigned_at: now, expires_at, managed_by });
            }
            NewState::Revoked => revoked.push((*agent, *role)),
        }
    }
    let assigned: Vec<AgentAndRole> = new.iter().map(|assignment| (assignment.agent, assignment.role)).collect();
    let expired: BTreeMap<_, _> =
        assignments::mark_expiries_reported(tx.conn(), &assigned, now).await?.into_iter().collect();
    assignments::upsert(tx.conn(), &new).await?;
    let removed: BTreeMap<_, _> = assignments::remove(tx.conn(), service, &revoked).await?.into_iter().collect();

    let mut written = Written { tx, service, audited: Vec::new() };
    let results = decided.into_iter().map(|(change, decision)| {
        let Allowed { name, existing } = decision?;
        let key = (change.agent, change.role);
        Ok(match &change.new {
            NewState::Assigned { expires_at, managed_by } => {
                let new = (*expires_at, managed_by.as_ref());
                written.assigned(change, name, (existing, new), expired.get(&key).copied())
            }
            NewState::Revoked => written.revoked(change, name, removed.get(&key).copied()),
        })
    });
    let results = results.collect();
    let audited = written.audited;
    let entries: Vec<_> = audited.iter().map(|(initiator, entry)| (*initiator, entry)).collect();
    tx.audit_all(AuditChain::Service(service), &entries).await?;
    Ok(results)
}

/// Records what was written: for the sidecars, for webhooks, and for the audit log.
struct Written<'a, 'tx> {
    tx: &'tx mut WriteTransaction,
    service: ServiceId,
    audited: Vec<(&'a Initiator, NewAuditEntry)>,
}

impl<'a> Written<'a, '_> {
    /// Records an assignment. `unreported_expiry` is the expiry of an earlier assignment that no event has reported.
    fn assigned(
        &mut self,
        change: &'a AssignmentChange,
        name: RoleName,
        (existing, (expires_at, managed_by)): (Option<ManagedGrant>, (Option<Timestamp>, Option<&ManagedBy>)),
        unreported_expiry: Option<Timestamp>,
    ) -> bool {
        let (service, now) = (self.service, self.tx.now());
        let AssignmentChange { agent, role, event, .. } = *change;
        // Events are delivered in the order of their ids.
        let [earlier, event] = [event.bits() & !1, event.bits() | 1].map(EventId::from_bits);
        if let Some(at) = unreported_expiry {
            let (name, reason) = (name.clone(), RevocationReason::Expired);
            self.tx.emit(role_revoked_event(earlier, RoleRevocation { agent, service, role, name, at, reason }));
        }
        let (until_before, managed_by_before) =
            existing.map_or((None, None), |ManagedGrant { grant, managed_by }| (Some(grant.until), managed_by));
        let is_changed = until_before != Some(expires_at);
        let takes_name = managed_by.is_some() && managed_by != managed_by_before.as_ref();
        if is_changed || takes_name {
            let entry = NewAuditEntry::for_service(service, AuditAction::RoleAssigned)
                .agent(agent)
                .object(AuditedObject::Role(role))
                .with_detail("name", name.as_str())
                .with_detail("until", unix_seconds(expires_at));
            let entry = match until_before {
                Some(until) => entry.with_detail("untilBefore", unix_seconds(until)),
                None => entry,
            };
            let entry =
                if takes_name { entry.managed_by_if_changed(managed_by_before.as_ref(), managed_by) } else { entry };
            self.audited.push((&change.initiator, entry));
        }
        if is_changed {
            let data =
                RoleAssignedEvent { agent_id: agent, service_id: service, role_id: role, role_name: name, expires_at };
            self.tx.emit(Event { id: event, at: now, data: EventData::RoleAssigned(data) });
        }
        self.tx.record_change(Change::Roles(agent, service));
        true
    }

    /// Records a revocation. Returns whether the agent had the role: an expired assignment counts as absent. Its removal revokes
    /// nothing, and emits an event only if no event about the expiry was emitted yet.
    fn revoked(&mut self, change: &'a AssignmentChange, name: RoleName, removed: Option<RemovedAssignment>) -> bool {
        let Some(RemovedAssignment { expires_at, expiry_reported }) = removed else { return false };
        let (service, now) = (self.service, self.tx.now());
        let AssignmentChange { agent, role, event, .. } = *change;
        self.tx.record_change(Change::Roles(agent, service));
        let was_live = expires_at.is_none_or(|end| now < end);
        if was_live {
            self.audited.push((&change.initiator, role_revoked_entry(service, agent, role, &name)));
        }
        if !expiry_reported {
            let (at, reason) = match expires_at {
                Some(end) if !was_live => (end, RevocationReason::Expired),
                Some(_) | None => (now, RevocationReason::Revoked),
            };
            self.tx.emit(role_revoked_event(event, RoleRevocation { agent, service, role, name, at, reason }));
        }
        was_live
    }
}

/// The expiry as written in the audit log: Unix seconds or null.
fn unix_seconds(expires_at: Option<Timestamp>) -> Option<i64> {
    expires_at.map(Timestamp::seconds)
}
