//! Counts for quotas. A count stops at the quota, so it is fast even if there are many more rows.

use super::{
    Conn, StoreError,
    query::{Parameter, params},
    row,
    statements::statements,
};
use crate::domain::{
    agent::Owner,
    quota::{DELETED_AGENT_COUNTS_FOR, DELETED_SERVICE_COUNTS_FOR},
};
use countersign_identity::{ServiceId, Timestamp};

statements! { STATEMENTS:
    LOCK_OWNER = "INSERT INTO quota_locks (owner_issuer, owner_subject, locked_at) VALUES ($1, $2, $3) \
         ON CONFLICT (owner_issuer, owner_subject) DO UPDATE SET locked_at = excluded.locked_at";
    COUNT_AGENTS = "SELECT CAST(COALESCE(SUM(agents), 0) AS BIGINT) AS total FROM (SELECT 1 AS agents FROM agents \
         WHERE owner_issuer = $1 AND owner_subject = $2 \
         UNION ALL SELECT agents FROM agent_deletions \
         WHERE owner_issuer = $1 AND owner_subject = $2 AND deleted_at > $3 LIMIT $4 + 0) counted";
    COUNT_SERVICES = "SELECT CAST(COUNT(*) AS BIGINT) AS total FROM (SELECT 1 AS one FROM services \
         WHERE owner_issuer = $1 AND owner_subject = $2 AND deleted_at IS NULL \
         UNION ALL SELECT 1 AS one FROM services \
         WHERE owner_issuer = $1 AND owner_subject = $2 AND deleted_at > $3 LIMIT $4 + 0) counted";
    COUNT_KEYS = "SELECT CAST(COUNT(*) AS BIGINT) AS total FROM (SELECT 1 AS one FROM service_keys \
         WHERE service_id = $1 AND revoked_at IS NULL LIMIT $2 + 0) counted";
}

/// Locks the quotas of a person until the transaction ends, so that concurrent requests cannot exceed them.
pub async fn lock_owner(conn: &mut Conn, owner: &Owner, now: Timestamp) -> Result<(), StoreError> {
    conn.apply(LOCK_OWNER, params![owner.issuer, owner.subject, now]).await
}

/// Whether a person has registered `limit` agents or more. Deleted agents count for a while.
pub async fn agent_quota_is_reached(
    conn: &mut Conn,
    owner: &Owner,
    limit: u32,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let deleted_since = now.saturating_sub(DELETED_AGENT_COUNTS_FOR);
    is_reached(conn, COUNT_AGENTS, params![owner.issuer, owner.subject, deleted_since], limit).await
}

/// Whether a person owns `limit` services or more. Deleted services count for a while.
pub async fn service_quota_is_reached(
    conn: &mut Conn,
    owner: &Owner,
    limit: u32,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let deleted_since = now.saturating_sub(DELETED_SERVICE_COUNTS_FOR);
    is_reached(conn, COUNT_SERVICES, params![owner.issuer, owner.subject, deleted_since], limit).await
}

/// Whether a service has at least `limit` API keys that are not revoked.
pub async fn key_quota_is_reached(conn: &mut Conn, service: ServiceId, limit: u32) -> Result<bool, StoreError> {
    is_reached(conn, COUNT_KEYS, params![service], limit).await
}

/// Runs a statement that counts up to the quota, its last parameter.
async fn is_reached<const N: usize>(
    conn: &mut Conn,
    sql: &'static str,
    subject: [Parameter; N],
    limit: u32,
) -> Result<bool, StoreError> {
    let parameters = subject.into_iter().chain(params![limit]);
    Ok(conn.read_row(sql, parameters, row::total_count).await? >= i64::from(limit))
}
