//! The table of agents of public registrations that have not logged in. Housekeeping deletes them after some time, so that
//! strangers cannot use up the quota of public registrations for ever.

use super::{Conn, StoreError, query::params, row, row_lists::row_list_statements, statements::statements};
use countersign_identity::{AgentId, Timestamp};

statements! { STATEMENTS:
    INSERT_UNUSED = "INSERT INTO unused_agents (agent_id, registered_at) VALUES ($1, $2)";
    RESTART_WAITING = "UPDATE unused_agents SET registered_at = $1";
    OLDEST_UNUSED = "SELECT MIN(registered_at) AS oldest FROM unused_agents WHERE registered_at >= $1";
    LIST_UNUSED = "SELECT agent_id FROM unused_agents WHERE registered_at >= $1 AND registered_at <= $2 \
         ORDER BY registered_at LIMIT $3 + 0";
}

row_list_statements! { ROW_LISTS:
    DELETE_UNUSED = "DELETE FROM unused_agents WHERE agent_id IN ({$1})";
}

/// Records that an agent was registered and has not logged in.
pub async fn insert(conn: &mut Conn, agent: AgentId, now: Timestamp) -> Result<(), StoreError> {
    conn.apply(INSERT_UNUSED, params![agent, now]).await
}

/// Records that agents have logged in, or that they were deleted. The caller must have locked the agents.
pub async fn remove(conn: &mut Conn, agents: &[AgentId]) -> Result<(), StoreError> {
    DELETE_UNUSED.execute(conn, &[], agents.iter().map(|agent| params![agent])).await.map(drop)
}

/// Makes all these agents count as registered at `now`. A backup lacks later logins, so after a restore each agent gets the whole
/// time again.
pub async fn restart_waiting(conn: &mut Conn, now: Timestamp) -> Result<(), StoreError> {
    conn.apply(RESTART_WAITING, params![now]).await
}

/// The earliest registration, at or after `from`, of an agent that has not logged in.
pub async fn oldest_registration(conn: &mut Conn, from: Timestamp) -> Result<Option<Timestamp>, StoreError> {
    conn.find_oldest(OLDEST_UNUSED, params![from]).await
}

/// Lists up to `limit` agents that were registered between two times, the oldest first.
pub async fn list(conn: &mut Conn, from: Timestamp, until: Timestamp, limit: i64) -> Result<Vec<AgentId>, StoreError> {
    conn.list_rows(LIST_UNUSED, params![from, until, limit], |row| row::parse(row, "agent_id")).await
}
