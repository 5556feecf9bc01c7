//! What remains of deleted agents: the counts for the quotas of their owners, and their rows in the table of agents.
//!
//! We remove the row of a deleted agent when no session and no token of the agent can be valid, and no other row refers to it (the
//! audit log has the id as a text). With it, we remove the feedback about the agent, which nobody can read any more.

use super::{Conn, StoreError, query::params, retention::ExpiringRows, row, statements::statements};
use crate::domain::agent::Owner;
use countersign_identity::{AgentId, Timestamp};
use std::time::Duration;

statements! { STATEMENTS:
    COUNT_DELETION = "INSERT INTO agent_deletions (owner_issuer, owner_subject, deleted_at, agents) VALUES ($1, $2, $3, 1) \
         ON CONFLICT (owner_issuer, owner_subject, deleted_at) DO UPDATE SET agents = agent_deletions.agents + 1";
    OLDEST_DELETION = "SELECT MIN(deleted_at) AS oldest FROM agent_deletions WHERE deleted_at >= $1";
    DELETE_DELETIONS = "DELETE FROM agent_deletions WHERE (owner_issuer, owner_subject, deleted_at) IN \
         (SELECT owner_issuer, owner_subject, deleted_at FROM agent_deletions WHERE deleted_at >= $1 AND deleted_at <= $2 \
         ORDER BY deleted_at LIMIT $3 + 0)";
    OLDEST_ROW = "SELECT COALESCE(referenced_at, deleted_at) AS oldest FROM agents WHERE deleted_at IS NOT NULL \
         AND COALESCE(referenced_at, deleted_at) >= $1 ORDER BY COALESCE(referenced_at, deleted_at) LIMIT 1";
    LIST_ROWS = "SELECT id FROM agents WHERE deleted_at IS NOT NULL AND COALESCE(referenced_at, deleted_at) >= $1 \
         AND COALESCE(referenced_at, deleted_at) <= $2 ORDER BY COALESCE(referenced_at, deleted_at) LIMIT $3 + 0";
    /// Looks for the first row of each table, not for any row, so that PostgreSQL uses an index even without statistics.
    POSTPONE = "UPDATE agents SET referenced_at = $1 WHERE id = $2 AND (purge_at IS NOT NULL \
         OR (SELECT id FROM sessions WHERE agent_id = $2 ORDER BY ended_at LIMIT 1) IS NOT NULL \
         OR (SELECT MIN(service_id) FROM token_audiences WHERE agent_id = $2) IS NOT NULL \
         OR (SELECT MIN(role_id) FROM assignments WHERE agent_id = $2) IS NOT NULL \
         OR (SELECT MIN(service_id) FROM agent_departures WHERE agent_id = $2) IS NOT NULL \
         OR (SELECT MIN(service_id) FROM known_agents WHERE agent_id = $2) IS NOT NULL)";
    DELETE_FEEDBACK =
        "DELETE FROM trust_feedback WHERE id IN (SELECT id FROM trust_feedback WHERE agent_id = $1 ORDER BY created_at, id LIMIT $2 + 0)";
    DELETE_RATINGS = "DELETE FROM trust_ratings WHERE agent_id = $1 AND service_id IN \
         (SELECT service_id FROM trust_ratings WHERE agent_id = $1 ORDER BY service_id LIMIT $2 + 0)";
    DELETE_MARK = "DELETE FROM changed_trust_scores WHERE agent_id = $1";
    DELETE_ROW = "DELETE FROM agents WHERE id = $1 AND deleted_at IS NOT NULL";
}

/// Counts a deleted agent for the quota of its owner.
pub async fn count_deletion(conn: &mut Conn, owner: &Owner, now: Timestamp) -> Result<(), StoreError> {
    conn.apply(COUNT_DELETION, params![owner.issuer, owner.subject, now]).await
}

/// Counts of deletions.
pub const DELETIONS: ExpiringRows =
    ExpiringRows { oldest: OLDEST_DELETION, delete: DELETE_DELETIONS, kept: Duration::ZERO };

/// The earliest time, at or after `from`, at which an agent was deleted, or at which its row was still needed.
pub async fn oldest_row(conn: &mut Conn, from: Timestamp) -> Result<Option<Timestamp>, StoreError> {
    conn.find_oldest(OLDEST_ROW, params![from]).await
}

/// Lists up to `limit` agents that were deleted between two times, or whose rows were last needed between these times.
pub async fn list_rows(
    conn: &mut Conn,
    from: Timestamp,
    until: Timestamp,
    limit: i64,
) -> Result<Vec<AgentId>, StoreError> {
    conn.list_rows(LIST_ROWS, params![from, until, limit], |row| row::parse(row, "id")).await
}

/// Deletes up to `limit` rows of feedback and ratings about a deleted agent, and at last the row of the agent. If other rows still
/// refer to the agent, only records the time, so that we try again later. Returns the number of changed rows.
pub async fn remove(conn: &mut Conn, agent: AgentId, now: Timestamp, limit: i64) -> Result<u64, StoreError> {
    let postponed = conn.count_changes(POSTPONE, params![now, agent]).await?;
    if postponed > 0 {
        return Ok(postponed);
    }
    let mut deleted = 0;
    for sql in [DELETE_FEEDBACK, DELETE_RATINGS] {
        let remaining = limit.saturating_sub_unsigned(deleted);
        deleted += conn.count_changes(sql, params![agent, remaining]).await?;
        if deleted >= limit.unsigned_abs() {
            return Ok(deleted);
        }
    }
    for sql in [DELETE_MARK, DELETE_ROW] {
        deleted += conn.count_changes(sql, params![agent]).await?;
    }
    Ok(deleted)
}
