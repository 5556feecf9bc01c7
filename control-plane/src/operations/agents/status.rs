//! Suspends, reactivates or revokes an agent.

use crate::{
    domain::{
        agent::{Agent, StatusChange, check_status_transition, status_text},
        audit::{AuditAction, Initiator, NewAuditEntry},
        caller::Human,
        change::{Change, Changed},
        total::Total,
    },
    operations::{Context, NotFound, OperationError},
    store::{WriteTransaction, agents, totals},
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
        agents::lock(tx.conn(), agent).await?;
        let current = agents::find(tx.conn(), agent).await?.ok_or(OperationError::NotFound(NotFound::Agent))?;
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
