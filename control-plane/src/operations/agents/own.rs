//! What the owner of an agent reads and decides: the owner's agents, the services that gave an agent roles, and which of them
//! may do so again.

use crate::{
    domain::{
        agent::{Agent, ServiceOfAgent},
        audit::{AuditAction, Initiator, NewAuditEntry},
        caller::Human,
        change::{Change, Changed},
        page::{ListPage, Page},
        webhook::event::RevocationReason,
    },
    operations::{
        Context, NotFound, OperationError,
        authorize::lock_service,
        roles::{emit_role_revoked_event, role_revoked_entry},
    },
    store::{
        Conn, WriteTransaction, agents,
        assignments::{self, RoleRevocation},
        departures, roles,
    },
};
use countersign_identity::{AgentId, ServiceId};
use serde_json::json;

/// Lists the agents that the user has registered, newest first. Administrators also get only their own agents.
pub async fn list_own_agents(
    context: &Context,
    human: &Human,
    page: Page<AgentId>,
) -> Result<ListPage<Agent, AgentId>, OperationError> {
    Ok(agents::list_by_owner(context.store.read().await?.conn(), &human.identity, page).await?)
}

/// Lists the services at which an agent holds a role, and the services that its owner has left.
pub async fn list_services_of_agent(
    context: &Context,
    human: &Human,
    agent: AgentId,
    page: Page<ServiceId>,
) -> Result<ListPage<ServiceOfAgent, ServiceId>, OperationError> {
    let mut read = context.store.read().await?;
    require_owner_of_agent(read.conn(), human, agent).await?;
    Ok(departures::list_services(read.conn(), agent, context.now(), page).await?)
}

/// Leaves a service: ends all role assignments of the agent there, and lets the service assign no role to it until
/// [`readmit_service`]. Returns the number of roles that ended.
pub async fn leave_service(
    context: &Context,
    initiator: &Initiator,
    human: &Human,
    agent: AgentId,
    service: ServiceId,
) -> Result<Changed<usize>, OperationError> {
    let work = async |mut tx: WriteTransaction| {
        lock_service_for_owner(&mut tx, human, agent, service).await?;
        let now = tx.now();
        let held = assignments::list_active_grants(tx.conn(), service, agent, now).await?;
        let is_first = departures::insert(tx.conn(), agent, service, !held.is_empty(), now).await?;
        if !is_first && held.is_empty() {
            return Ok(tx.commit_change(0).await?);
        }
        let definitions = roles::list(tx.conn(), service).await?;
        for grant in &held {
            let role = grant.role;
            assignments::remove(tx.conn(), service, agent, role).await?;
            let Some(definition) = definitions.iter().find(|other| other.definition.id == role) else { continue };
            let (name, reason) = (definition.definition.name.clone(), RevocationReason::AgentLeft);
            let entry = role_revoked_entry(service, agent, role, &name).with_detail("reason", json!(reason));
            // The actor is the control plane, because the chain of the service must not tell who owns the agent.
            tx.audit(&Initiator::SYSTEM, &entry).await?;
            let revocation = RoleRevocation { agent, service, role, name, at: now, reason };
            emit_role_revoked_event(&mut tx, context, revocation);
        }
        let entry = audit_entry(AuditAction::AgentLeft, agent, service);
        tx.audit(initiator, &entry.with_detail("roles", held.len())).await?;
        if !held.is_empty() {
            tx.record_change(Change::Roles(agent, service));
        }
        Ok(tx.commit_change(held.len()).await?)
    };
    context.store.write("leave_service", work).await
}

/// Allows a service that was left to assign roles to the agent again.
pub async fn readmit_service(
    context: &Context,
    initiator: &Initiator,
    human: &Human,
    agent: AgentId,
    service: ServiceId,
) -> Result<Changed<()>, OperationError> {
    let work = async |mut tx: WriteTransaction| {
        lock_service_for_owner(&mut tx, human, agent, service).await?;
        if departures::delete(tx.conn(), agent, service).await? {
            tx.audit(initiator, &audit_entry(AuditAction::ServiceReadmitted, agent, service)).await?;
        }
        Ok(tx.commit_change(()).await?)
    };
    context.store.write("readmit_service", work).await
}

/// An entry for the chain of the deployment: the chain of the service would tell its owner who owns the agent.
fn audit_entry(action: AuditAction, agent: AgentId, service: ServiceId) -> NewAuditEntry {
    NewAuditEntry::for_deployment(action).agent(agent).with_detail("serviceId", service.to_string())
}

/// Requires the owner of the agent, and locks the service: an assignment of a role locks it too, so no role is assigned after
/// the agent has left.
async fn lock_service_for_owner(
    tx: &mut WriteTransaction,
    human: &Human,
    agent: AgentId,
    service: ServiceId,
) -> Result<(), OperationError> {
    require_owner_of_agent(tx.conn(), human, agent).await?;
    lock_service(tx, service).await.map(drop)
}

/// Requires the owner of the agent or an administrator.
async fn require_owner_of_agent(conn: &mut Conn, human: &Human, agent: AgentId) -> Result<(), OperationError> {
    let agent = agents::find(conn, agent).await?.ok_or(OperationError::NotFound(NotFound::Agent))?;
    Ok(human.require_owner(agent.registration.owner.as_ref())?)
}
