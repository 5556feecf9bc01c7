//! Rows that are kept for a time after an instant in one of their columns.

use super::{Conn, StoreError, query::params};
use countersign_identity::Timestamp;
use std::time::Duration;

/// When the oldest row may be deleted, at or after `from`. The statement reads the earliest instant at or after `$1` as `oldest`.
pub async fn oldest_deletable(
    sql: &'static str,
    conn: &mut Conn,
    from: Timestamp,
    kept: Duration,
) -> Result<Option<Timestamp>, StoreError> {
    let oldest = conn.find_oldest(sql, params![from.saturating_sub(kept)]).await?;
    Ok(oldest.map(|instant| instant.saturating_add(kept)))
}

/// Deletes up to `limit` rows that could be deleted since a time between `from` and `now`. Returns their number. The statement
/// deletes up to `$3` rows with instants from `$1` to `$2`.
pub async fn delete(
    sql: &'static str,
    conn: &mut Conn,
    from: Timestamp,
    now: Timestamp,
    kept: Duration,
    limit: i64,
) -> Result<u64, StoreError> {
    conn.count_changes(sql, params![from.saturating_sub(kept), now.saturating_sub(kept), limit]).await
}
