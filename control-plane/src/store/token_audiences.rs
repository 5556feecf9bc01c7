//! The table of the audiences of live tokens: the services whose sidecars must learn that an agent's status or trust changed.
//!
//! Every transaction that issues a token first locks the row of the agent, then records the audience. Every transaction that
//! changes the status, cutoff or trust of the agent locks the same row. So either the change finds the audience of the token,
//! or the token is issued after the change and its revision is not below that of the change.

use super::{Conn, StoreError, retention, row_lists::RowListStatement, statements::statements};
use countersign_identity::{AgentId, ServiceId, Timestamp};
use std::time::Duration;

/// Time for which an audience is kept after its last token expires, because the clocks of sidecars may be behind.
pub const MAX_SIDECAR_LAG: Duration = Duration::from_mins(30);

/// The parameters of an agent and an audience in [`UPSERT_AUDIENCES`].
macro_rules! audience_row {
    () => {
        "(CAST($2 AS TEXT), CAST($3 AS TEXT))"
    };
}

statements! { STATEMENTS:
    UPSERT_AUDIENCES = concat!(
        "INSERT INTO token_audiences (agent_id, service_id, expires_at) \
         SELECT column1, column2, CAST($1 AS BIGINT) FROM (VALUES ", audience_row!(), ") AS v WHERE column1 <> '' \
         ON CONFLICT (agent_id, service_id) DO UPDATE SET expires_at = CASE WHEN token_audiences.expires_at > excluded.expires_at \
         THEN token_audiences.expires_at ELSE excluded.expires_at END"
    );
    OLDEST_EXPIRY = "SELECT MIN(expires_at) AS oldest FROM token_audiences WHERE expires_at >= $1";
    /// The DELETE repeats the condition of its inner SELECT, because another transaction may extend an audience between the two.
    /// Without the unary plus, SQLite would use the index for the condition of the DELETE.
    DELETE_EXPIRED = "DELETE FROM token_audiences WHERE (agent_id, service_id) IN (SELECT agent_id, service_id \
         FROM token_audiences WHERE expires_at >= $1 AND expires_at <= $2 \
         ORDER BY expires_at LIMIT $3 + 0) AND +expires_at <= $2";
}

/// The text that stands for an audience in the database.
pub(super) fn audience_text(service: Option<ServiceId>) -> String {
    service.map_or(String::new(), |service| service.to_string())
}

const UPSERT: RowListStatement = RowListStatement { sql: UPSERT_AUDIENCES, row: audience_row!() };

/// Records that tokens were issued, each for a service or unbound. The caller must hold the locks on the agents.
pub async fn record(
    conn: &mut Conn,
    audiences: &[(AgentId, Option<ServiceId>)],
    expires_at: Timestamp,
) -> Result<(), StoreError> {
    let rows = audiences.iter().map(|(agent, service)| [agent.to_string().into(), audience_text(*service).into()]);
    UPSERT.execute(conn, &[expires_at.micros().into()], rows).await?;
    Ok(())
}

/// The statements with several rows, for the conformance tests.
#[cfg(test)]
pub(super) fn dynamic_statements() -> Vec<String> {
    UPSERT.texts()
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
