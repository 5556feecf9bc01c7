//! The table of the audiences of live tokens: the services whose sidecars must learn that an agent's status or trust changed.
//!
//! Every transaction that issues a token locks the row of the agent, and records the audience before its commit. It reads the agent
//! after the lock, or takes the lock only if the agent is unchanged since it was read. Every transaction that changes the status,
//! cutoff or trust of the agent locks the same row. So if the change comes second, it finds the audience of the token. If it comes
//! first, the revision of the token is not below the revision of the change.

use super::{
    Conn, StoreError,
    query::{params, text_or_empty},
    retention::ExpiringRows,
    statements::statements,
};
use countersign_identity::{AgentId, ServiceId, Timestamp};
use std::time::Duration;

/// How long we keep an audience after its last token expires, because the clocks of sidecars may be behind.
pub const MAX_SIDECAR_LAG: Duration = Duration::from_mins(30);

/// We record an audience for longer than its token is valid, so that the agent's next tokens need no write.
pub const RECORDED_BEYOND_EXPIRY: Duration = Duration::from_hours(1);

statements! { STATEMENTS:
    UPSERT_AUDIENCE = "INSERT INTO token_audiences (agent_id, service_id, expires_at) VALUES ($1, $2, $3) \
         ON CONFLICT (agent_id, service_id) DO UPDATE SET expires_at = CASE WHEN token_audiences.expires_at > excluded.expires_at \
         THEN token_audiences.expires_at ELSE excluded.expires_at END";
    HAS_AT_LEAST = "SELECT 1 AS one FROM token_audiences WHERE agent_id = $1 AND expires_at > $2 LIMIT 1 OFFSET $3";
    OLDEST_EXPIRY = "SELECT MIN(expires_at) AS oldest FROM token_audiences WHERE expires_at >= $1";
    /// The DELETE repeats the condition of its inner SELECT, because another transaction may extend an audience between the SELECT
    /// and the DELETE. Without the unary plus, SQLite would read all these rows again for the DELETE.
    DELETE_EXPIRED = "DELETE FROM token_audiences WHERE (agent_id, service_id) IN (SELECT agent_id, service_id \
         FROM token_audiences WHERE expires_at >= $1 AND expires_at <= $2 \
         ORDER BY expires_at LIMIT $3 + 0) AND +expires_at <= $2";
}

/// The text that stands for an audience in the database.
pub(super) fn audience_text(service: Option<ServiceId>) -> String {
    text_or_empty(service)
}

/// Records until when an agent may have live tokens for a service, or tokens for none (unbound tokens). The caller must hold the
/// lock on the agent.
pub async fn record(
    conn: &mut Conn,
    agent: AgentId,
    audience: Option<ServiceId>,
    expires_at: Timestamp,
) -> Result<(), StoreError> {
    conn.apply(UPSERT_AUDIENCE, params![agent, audience_text(audience), expires_at]).await
}

/// Whether an agent has live tokens for at least `count` audiences. Deleted services count, too, because we write changes for them.
/// Otherwise, somebody could get around the quota by deleting services.
pub async fn has_at_least(conn: &mut Conn, agent: AgentId, count: u32, now: Timestamp) -> Result<bool, StoreError> {
    conn.has_row(HAS_AT_LEAST, params![agent, now, count.saturating_sub(1)]).await
}

/// Audiences whose tokens have expired even for sidecars whose clocks are behind.
pub const EXPIRED: ExpiringRows = ExpiringRows { oldest: OLDEST_EXPIRY, delete: DELETE_EXPIRED, kept: MAX_SIDECAR_LAG };
