//! Deletes an agent.

use crate::{
    domain::{
        agent::Agent,
        audit::{AuditAction, Initiator, NewAuditEntry},
        caller::Human,
        change::{Change, Changed},
        total::Total,
    },
    operations::{Context, NotFound, OperationError},
    store::{WriteTransaction, agents, deleted_agents, totals, unused_agents},
};
use countersign_identity::{AgentId, AgentStatus};

/// Deletes an agent. All tokens and sessions of the agent become invalid, and the data of its registration is erased at once:
/// owner, e-mail address, name, metadata and public key. The id remains in the audit log. The same key can be registered again, as
/// another agent. Housekeeping removes the assignments of the agent, and after some time its row with the feedback about it.
pub async fn delete_agent(
    context: &Context,
    initiator: &Initiator,
    human: &Human,
    agent: AgentId,
) -> Result<Changed<()>, OperationError> {
    let work = async |mut tx: WriteTransaction| {
        if !agents::lock(tx.conn(), agent).await? {
            return Err(OperationError::NotFound(NotFound::Agent));
        }
        let current = agents::find(tx.conn(), agent).await?.ok_or(OperationError::NotFound(NotFound::Agent))?;
        human.require_owner(current.registration.owner.as_ref())?;
        delete_locked_agents(&mut tx, initiator, &[current]).await?;
        Ok(tx.commit_change(()).await?)
    };
    context.store.write("delete_agent", work).await
}

/// Deletes agents whose rows the transaction has locked.
pub(in crate::operations) async fn delete_locked_agents(
    tx: &mut WriteTransaction,
    initiator: &Initiator,
    deleted: &[Agent],
) -> Result<(), OperationError> {
    if deleted.is_empty() {
        return Ok(());
    }
    let now = tx.now();
    let (mut active, mut public, mut unused) = (0, 0, Vec::new());
    for Agent { id, registration, status, .. } in deleted {
        active += i64::from(*status == AgentStatus::Active);
        if let Some(owner) = &registration.owner {
            deleted_agents::count_deletion(tx.conn(), owner, now).await?;
        } else {
            public += 1;
            unused.push(*id);
        }
    }
    unused_agents::remove(tx.conn(), &unused).await?;
    for (total, number) in [(Total::ActiveAgents, active), (Total::PublicAgents, public)] {
        if number > 0 {
            totals::add(tx.conn(), total, -number).await?;
        }
    }
    for Agent { id, .. } in deleted {
        tx.audit(initiator, &NewAuditEntry::for_deployment(AuditAction::AgentDeleted).agent(*id)).await?;
    }
    let cutoff = tx.revision().await?;
    for Agent { id, .. } in deleted {
        agents::mark_deleted(tx.conn(), *id, cutoff, now).await?;
        tx.record_change(Change::Status(*id));
    }
    Ok(())
}
