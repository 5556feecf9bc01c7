//! The table of agents of public registrations that have not logged in. They are deleted after some time, so that strangers cannot
//! use up the quota of public registrations for ever.

use super::{Conn, StoreError, row, row_lists::RowListStatement, statements::statements};
use countersign_identity::{AgentId, Timestamp};

/// The parameter of an agent in [`DELETE_UNUSED`].
macro_rules! agent {
    () => {
        "$1"
    };
}

statements! { STATEMENTS:
    INSERT_UNUSED = "INSERT INTO unused_agents (agent_id, registered_at) VALUES ($1, $2)";
    DELETE_UNUSED = concat!("DELETE FROM unused_agents WHERE agent_id IN (", agent!(), ")");
    RESTART_WAITING = "UPDATE unused_agents SET registered_at = $1";
    OLDEST_UNUSED = "SELECT MIN(registered_at) AS oldest FROM unused_agents WHERE registered_at >= $1";
    LIST_UNUSED = "SELECT agent_id FROM unused_agents WHERE registered_at >= $1 AND registered_at <= $2 \
         ORDER BY registered_at LIMIT $3 + 0";
}

const DELETE: RowListStatement = RowListStatement { sql: DELETE_UNUSED, row: agent!() };

/// Records that an agent was registered and has not logged in.
pub async fn insert(conn: &mut Conn, agent: AgentId, now: Timestamp) -> Result<(), StoreError> {
    sqlx::query(INSERT_UNUSED).bind(agent.to_string()).bind(now.micros()).execute(conn).await?;
    Ok(())
}

/// Records that agents have logged in, or that they were deleted. The caller must have locked the agents.
pub async fn remove(conn: &mut Conn, agents: &[AgentId]) -> Result<(), StoreError> {
    DELETE.execute(conn, &[], agents.iter().map(|agent| [agent.to_string().into()])).await?;
    Ok(())
}

/// The statements with several rows, for the conformance tests.
#[cfg(test)]
pub(super) fn dynamic_statements() -> Vec<String> {
    DELETE.texts()
}

/// Makes all agents count as registered at this time. A backup does not contain the logins after it, so after a restore the agents get
/// the whole time again.
pub async fn restart_waiting(conn: &mut Conn, now: Timestamp) -> Result<(), StoreError> {
    sqlx::query(RESTART_WAITING).bind(now.micros()).execute(conn).await?;
    Ok(())
}

/// The earliest registration, at or after `from`, of an agent that has not logged in.
pub async fn oldest_registration(conn: &mut Conn, from: Timestamp) -> Result<Option<Timestamp>, StoreError> {
    row::find_oldest(OLDEST_UNUSED, conn, Some(from)).await
}

/// Lists up to `limit` agents that were registered between two times, the oldest first.
pub async fn list(conn: &mut Conn, from: Timestamp, until: Timestamp, limit: i64) -> Result<Vec<AgentId>, StoreError> {
    let query = sqlx::query(LIST_UNUSED).bind(from.micros()).bind(until.micros()).bind(limit);
    query.fetch_all(conn).await?.iter().map(|row| row::parse(row, "agent_id")).collect()
}
