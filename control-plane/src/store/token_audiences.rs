//! The table of the audiences of live tokens: the services whose sidecars must learn that an agent's status or trust changed.
//!
//! Every transaction that issues a token first locks the row of the agent, then records the audience. Every transaction that
//! changes the status, cutoff or trust of the agent locks the same row. So either the change finds the audience of the token,
//! or the token is issued after the change and its revision is not below that of the change.

use super::{Conn, StoreError, retention, row, statements::statements};
use countersign_identity::{AgentId, ServiceId, Timestamp};
use std::time::Duration;

/// Time for which an audience is kept after its last token expires, because the clocks of sidecars may be behind.
pub const MAX_SIDECAR_LAG: Duration = Duration::from_mins(30);

statements! { STATEMENTS:
    UPSERT_AUDIENCE = "INSERT INTO token_audiences (agent_id, service_id, expires_at) VALUES ($1, $2, $3) \
         ON CONFLICT (agent_id, service_id) DO UPDATE SET expires_at = excluded.expires_at \
         WHERE token_audiences.expires_at < excluded.expires_at";
    COUNT_OTHER_AUDIENCES = "SELECT CAST(COUNT(*) AS BIGINT) AS total FROM (SELECT 1 AS one FROM token_audiences \
         WHERE agent_id = $1 AND service_id <> $2 AND expires_at > $3 LIMIT $4) counted";
    OLDEST_EXPIRY = "SELECT MIN(expires_at) AS oldest FROM token_audiences WHERE expires_at >= $1";
    /// The DELETE repeats the condition of its inner SELECT, because another transaction may extend an audience between the two.
    /// Without the unary plus, SQLite would use the index for the condition of the DELETE.
    DELETE_EXPIRED = "DELETE FROM token_audiences WHERE (agent_id, service_id) IN (SELECT agent_id, service_id \
         FROM token_audiences WHERE expires_at >= $1 AND expires_at <= $2 \
         ORDER BY expires_at LIMIT $3) AND +expires_at <= $2";
}

/// The text that stands for an audience in the database.
pub(super) fn audience_text(service: Option<ServiceId>) -> String {
    service.map_or(String::new(), |service| service.to_string())
}

/// Records that a token for a service, or an unbound token, was issued. The caller must hold the lock on the agent.
pub async fn record(
    conn: &mut Conn,
    agent: AgentId,
    service: Option<ServiceId>,
    expires_at: Timestamp,
) -> Result<(), StoreError> {
    let query = sqlx::query(UPSERT_AUDIENCE).bind(agent.to_string()).bind(audience_text(service));
    query.bind(expires_at.micros()).execute(conn).await?;
    Ok(())
}

/// Whether the agent has tokens that are live at `now` for `limit` audiences or more, apart from `service`. Deleted services
/// count, because changes are also written for them: otherwise, one could multiply the audiences of an agent.
pub async fn quota_is_reached(
    conn: &mut Conn,
    agent: AgentId,
    service: Option<ServiceId>,
    (now, limit): (Timestamp, u32),
) -> Result<bool, StoreError> {
    let limit = i64::from(limit);
    let query = sqlx::query(COUNT_OTHER_AUDIENCES).bind(agent.to_string()).bind(audience_text(service));
    Ok(row::total_count(&query.bind(now.micros()).bind(limit).fetch_one(conn).await?)? >= limit)
}

/// When the tokens of the oldest audience have expired even for sidecars whose clocks are behind, at or after `from`.
pub async fn oldest_expiry(conn: &mut Conn, from: Timestamp) -> Result<Option<Timestamp>, StoreError> {
    retention::oldest_deletable(OLDEST_EXPIRY, conn, from, MAX_SIDECAR_LAG).await
}

/// Deletes up to `limit` audiences whose tokens expired between two times, even for sidecars whose clocks are behind. Returns
/// their number.
pub async fn delete_expired(conn: &mut Conn, range: (Timestamp, Timestamp), limit: i64) -> Result<u64, StoreError> {
    retention::delete(DELETE_EXPIRED, conn, range, MAX_SIDECAR_LAG, limit).await
}
