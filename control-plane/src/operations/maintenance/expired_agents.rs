//! Deletes agents of public registrations that never logged in, and removes the rows of deleted agents.

use crate::{
    domain::{agent::Agent, audit::Initiator},
    operations::{OperationError, agents::delete_locked_agents},
    store::{WriteTransaction, agents, deleted_agents, unused_agents},
};
use countersign_identity::Timestamp;

/// A transaction that may change some number of rows takes this part of it in agents: of each agent, several rows change.
const ROWS_PER_AGENT: i64 = 10;

const fn max_agents(limit: i64) -> i64 {
    if limit < ROWS_PER_AGENT { 1 } else { limit / ROWS_PER_AGENT }
}

/// Deletes agents that were registered between two times without the token of a human user, and have not logged in. Returns their
/// number, with those that have logged in since they were listed.
pub(super) async fn delete_unused(
    tx: &mut WriteTransaction,
    from: Timestamp,
    until: Timestamp,
    limit: i64,
) -> Result<u64, OperationError> {
    let mut listed = unused_agents::list(tx.conn(), from, until, max_agents(limit)).await?;
    // Every transaction that locks several agents locks them in the order of their ids, so that no deadlock occurs.
    listed.sort_unstable();
    let mut unused = Vec::new();
    for agent in &listed {
        if agents::lock(tx.conn(), *agent).await? {
            unused.extend(agents::find(tx.conn(), *agent).await?.filter(is_unused));
        }
    }
    unused_agents::remove(tx.conn(), &listed).await?;
    delete_locked_agents(tx, &Initiator::SYSTEM, &unused).await?;
    Ok(listed.len() as u64)
}

/// The list of unused agents may be outdated, so the agent itself decides.
fn is_unused(agent: &Agent) -> bool {
    agent.registration.owner.is_none() && agent.last_seen_at.is_none()
}

/// Removes rows of agents that were deleted between two times, and the feedback about them. Returns the number of changed rows.
pub(super) async fn remove_rows(
    tx: &mut WriteTransaction,
    from: Timestamp,
    until: Timestamp,
    limit: i64,
) -> Result<u64, OperationError> {
    let now = tx.now();
    let mut changed = 0;
    for agent in deleted_agents::list_rows(tx.conn(), from, until, max_agents(limit)).await? {
        let remaining = limit.saturating_sub_unsigned(changed);
        if remaining <= 0 {
            break;
        }
        changed += deleted_agents::remove(tx.conn(), agent, now, remaining).await?;
    }
    Ok(changed)
}
