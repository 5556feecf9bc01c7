//! What the owner of an agent decides about a service: to leave it, so that the agent holds no role there, or to readmit it.

use super::read::require_owner_of_agent;
use crate::{
    domain::{
        audit::{AuditAction, Initiator, NewAuditEntry},
        caller::Human,
        change::{Change, Changed},
        webhook::event::{RevocationReason, RoleRevokedEvent},
    },
    operations::{
        Context, OperationError,
        find::lock_service,
        roles::{emit_role_revoked, role_revoked_entry},
    },
    store::{WriteTransaction, assignments, departures, roles},
};
use countersign_identity::{AgentId, ServiceId};
use serde_json::json;

/// Leaves a service: ends all role assignments of the agent there. The service cannot assign roles to the agent again until
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
            // `definitions` contains the role of every active grant, so no role ends without its event.
            assignments::remove(tx.conn(), service, agent, grant.role).await?;
            let Some(role) = definitions.iter().find(|other| other.definition.id == grant.role) else { continue };
            let ended = RoleRevokedEvent {
                agent_id: agent,
                service_id: service,
                role_id: grant.role,
                role_name: role.definition.name.clone(),
                reason: RevocationReason::AgentLeft,
            };
            // The entry names the control plane as the actor, because the chain of the service must not tell who owns the agent.
            let entry = role_revoked_entry(&ended).with_detail("reason", json!(ended.reason));
            tx.audit(&Initiator::SYSTEM, &entry).await?;
            emit_role_revoked(&mut tx, context, now, ended);
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

/// Lets a service assign roles to the agent again after [`leave_service`].
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

/// An entry for the chain of the deployment: the chain of the service would tell the owner of the service who owns the agent.
fn audit_entry(action: AuditAction, agent: AgentId, service: ServiceId) -> NewAuditEntry {
    NewAuditEntry::for_deployment(action).agent(agent).with_detail("serviceId", service.to_string())
}

/// Requires the owner of the agent, and locks the service. Whoever assigns a role locks the service too, so nobody assigns one after
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
