//! Audited changes for sidecars, until an audit entry confirms that the changes are in force at all sidecars. Each audit chain has
//! at most two rows, for any number of changes: one for the changes whose confirmation we await, and one for later changes.

use super::{Conn, StoreError, query::params, row, statements::statements};
use countersign_identity::{Revision, Timestamp};
use sqlx::any::AnyRow;

statements! { STATEMENTS:
    UPSERT = "INSERT INTO unconfirmed_changes (chain, is_awaited, first_sequence, last_sequence, first_changed_at, changed_at) \
         VALUES ($1, 0, $2, $3, $4, $5) ON CONFLICT (chain, is_awaited) \
         DO UPDATE SET last_sequence = excluded.last_sequence, changed_at = excluded.changed_at";
    LIST = "SELECT chain, first_sequence, last_sequence, first_changed_at, changed_at, revision FROM unconfirmed_changes WHERE chain > $1 \
         AND (is_awaited = 1 OR NOT EXISTS (SELECT 1 FROM unconfirmed_changes awaited \
         WHERE awaited.chain = unconfirmed_changes.chain AND awaited.is_awaited = 1)) ORDER BY chain LIMIT $2 + 0";
    /// Also locks the row, so that nobody adds a change to it after the awaited revision.
    AWAIT = "UPDATE unconfirmed_changes SET is_awaited = 1 WHERE chain = $1 AND is_awaited = 0 \
         AND NOT EXISTS (SELECT 1 FROM unconfirmed_changes awaited WHERE awaited.chain = $1 AND awaited.is_awaited = 1)";
    SET_REVISION = "UPDATE unconfirmed_changes SET revision = (SELECT revision FROM feed WHERE id = 1) \
         WHERE chain = $1 AND is_awaited = 1 AND revision IS NULL";
    IS_FIRST = "SELECT 1 AS found FROM unconfirmed_changes WHERE chain = $1 AND first_sequence = $2";
    DELETE = "DELETE FROM unconfirmed_changes WHERE chain = $1 AND last_sequence = $2";
    KEEP_LATER = "UPDATE unconfirmed_changes SET first_sequence = $3, first_changed_at = $4 WHERE chain = $1 AND first_sequence = $2";
}

/// The entries of a chain about changes that are not confirmed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnconfirmedChanges {
    pub chain: String,
    /// The position of the first entry.
    pub first_sequence: i64,
    /// The position of the last entry.
    pub last_sequence: i64,
    /// When the first change was made. If the first changes are already confirmed, the time of the last confirmed one.
    pub first_changed_at: Timestamp,
    /// When the last change was made.
    pub changed_at: Timestamp,
    /// The revision that must be in force at all sidecars. `None` if we do not wait yet, so that later changes are still added.
    pub awaited: Option<Revision>,
}

/// Adds entries. The caller must hold the lock of the chain.
pub async fn add(conn: &mut Conn, changes: &UnconfirmedChanges) -> Result<(), StoreError> {
    let UnconfirmedChanges { chain, first_sequence, last_sequence, first_changed_at, changed_at, awaited: _ } = changes;
    conn.apply(UPSERT, params![chain, first_sequence, last_sequence, first_changed_at, changed_at]).await
}

/// Lists up to `limit` chains after a chain, each with the changes whose confirmation we await, or else those to await next.
pub async fn list(conn: &mut Conn, after: &str, limit: i64) -> Result<Vec<UnconfirmedChanges>, StoreError> {
    let changes = |row: &AnyRow| {
        Ok(UnconfirmedChanges {
            chain: row::get(row, "chain")?,
            first_sequence: row::get(row, "first_sequence")?,
            last_sequence: row::get(row, "last_sequence")?,
            first_changed_at: row::timestamp(row, "first_changed_at")?,
            changed_at: row::timestamp(row, "changed_at")?,
            awaited: row::get::<Option<i64>>(row, "revision")?.map(Revision::new),
        })
    };
    conn.list_rows(LIST, params![after, limit], changes).await
}

/// Begins to wait for the newest revision, which contains all changes of a chain so far. Later changes get another row.
pub async fn await_newest_revision(conn: &mut Conn, chain: &str) -> Result<(), StoreError> {
    conn.apply(AWAIT, params![chain]).await?;
    conn.apply(SET_REVISION, params![chain]).await
}

/// Whether the first of these changes is still unconfirmed.
pub async fn is_first(conn: &mut Conn, changes: &UnconfirmedChanges) -> Result<bool, StoreError> {
    conn.has_row(IS_FIRST, params![changes.chain, changes.first_sequence]).await
}

/// Removes changes that are confirmed. If later changes were added to their row, the row remains for those.
pub async fn remove(conn: &mut Conn, changes: &UnconfirmedChanges) -> Result<(), StoreError> {
    let UnconfirmedChanges { chain, first_sequence, last_sequence, first_changed_at: _, changed_at, awaited: _ } =
        changes;
    if !conn.changes_row(DELETE, params![chain, last_sequence]).await? {
        let first_later = last_sequence.saturating_add(1);
        conn.apply(KEEP_LATER, params![chain, first_sequence, first_later, changed_at]).await?;
    }
    Ok(())
}
