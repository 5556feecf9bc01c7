//! Suspends, reactivates, revokes and deletes agents.

use crate::{
    domain::{
        agent::{Agent, StatusChange, check_status_transition, status_text},
        audit::{AuditAction, Initiator, NewAuditEntry},
        caller::Human,
        change::{Change, Changed},
        total::Total,
    },
    operations::{Context, OperationError, find::lock_agent},
    store::{WriteTransaction, agents, deleted_agents, totals, unused_agents},
};
use countersign_identity::{AgentId, AgentStatus};

/// Sets the status of an agent. Suspension and revocation invalidate all tokens and sessions issued so far, permanently.
pub async fn set_agent_status(
    context: &Context,
    initiator: &Initiator,
    human: &Human,
    agent: AgentId,
    status: AgentStatus,
) -> Result<Changed<Agent>, OperationError> {
    let work = async |mut tx: WriteTransaction| {
        let current = lock_agent(&mut tx, agent).await?;
        human.require_owner(current.registration.owner.as_ref())?;
        let change = check_status_transition(current.status, status).map_err(|_| {
            OperationError::Conflict(
                "the agent is revoked, and a revocation cannot be undone: register a new agent with a new key".into(),
            )
        })?;
        if change == StatusChange::Unchanged {
            return Ok(tx.commit_change(current).await?);
        }
        let count = |status| i64::from(status == AgentStatus::Active);
        let change_of_total = count(status) - count(current.status);
        totals::add(tx.conn(), Total::ActiveAgents, change_of_total).await?;
        let entry = NewAuditEntry::for_deployment(AuditAction::AgentStatusChanged).agent(agent);
        tx.audit(initiator, &entry.detail_if_changed("status", status_text(current.status), status_text(status)))
            .await?;
        let cutoff = match change {
            StatusChange::Unchanged | StatusChange::Reactivated => current.cutoff,
            StatusChange::Deactivated => tx.revision().await?,
        };
        let now = tx.now();
        agents::set_status(tx.conn(), agent, status, cutoff, now).await?;
        tx.record_change(Change::Status(agent));
        Ok(tx.commit_change(Agent { status, cutoff, updated_at: now, ..current }).await?)
    };
    context.store.write("set_agent_status", work).await
}

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
        let current = lock_agent(&mut tx, agent).await?;
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
