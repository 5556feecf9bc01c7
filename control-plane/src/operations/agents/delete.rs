//! Deletes an agent.

use crate::{
    domain::{
        audit::{AuditAction, Initiator, NewAuditEntry},
        caller::Human,
        change::Change,
        total::Total,
    },
    operations::{Context, NotFound, OperationError},
    store::{WriteTransaction, agents, totals},
};
use countersign_identity::{AgentId, AgentStatus};

/// Deletes an agent. All tokens and sessions of the agent become invalid, and the data of its registration is erased at once:
/// owner, e-mail address, name, metadata and public key. The id remains in feedback and in the audit log. The same key can be
/// registered again, as another agent. Housekeeping removes the assignments of the agent.
pub async fn delete_agent(
    context: &Context,
    initiator: &Initiator,
    human: &Human,
    agent: AgentId,
) -> Result<(), OperationError> {
    let work = async |mut tx: WriteTransaction| {
        if !agents::lock(tx.conn(), agent).await? {
            return Err(OperationError::NotFound(NotFound::Agent));
        }
        let current = agents::find(tx.conn(), agent).await?.ok_or(OperationError::NotFound(NotFound::Agent))?;
        human.require_owner(current.registration.owner.as_ref())?;
        if current.status == AgentStatus::Active {
            totals::add(tx.conn(), Total::ActiveAgents, -1).await?;
        }
        if current.registration.owner.is_none() {
            totals::add(tx.conn(), Total::PublicAgents, -1).await?;
        }
        tx.audit(initiator, &NewAuditEntry::for_deployment(AuditAction::AgentDeleted).agent(agent)).await?;
        let (cutoff, now) = (tx.revision().await?, tx.now());
        agents::mark_deleted(tx.conn(), agent, cutoff, now).await?;
        tx.record_change(Change::Status(agent));
        Ok(tx.commit(()).await?)
    };
    context.store.write("delete_agent", work).await
}
