//! Which master key is current, and which previous master keys are still needed.
//!
//! The database decides which of the configured master keys encrypts and authenticates new rows. So all replicas use the same key
//! even while their settings differ.

use super::{Conn, StoreError, query::params, row, statements::statements};
use countersign_identity::Timestamp;

statements! { STATEMENTS:
    /// The current key comes first.
    LIST_MASTER_KEYS = "SELECT master_key_fingerprint AS fingerprint, 0 AS position FROM deployment WHERE id = 1 \
         UNION ALL SELECT fingerprint, 1 AS position FROM previous_master_keys ORDER BY 2, 1";
    SET_CURRENT = "UPDATE deployment SET master_key_fingerprint = $1, \
         first_master_key_fingerprint = COALESCE(first_master_key_fingerprint, master_key_fingerprint) WHERE id = 1";
    INSERT_PREVIOUS = "INSERT INTO previous_master_keys (fingerprint, replaced_at) VALUES ($1, $2) \
         ON CONFLICT (fingerprint) DO NOTHING";
    DELETE_PREVIOUS = "DELETE FROM previous_master_keys WHERE fingerprint = $1";
    FIND_FIRST = "SELECT COALESCE(first_master_key_fingerprint, master_key_fingerprint) AS fingerprint FROM deployment \
         WHERE id = 1";
}

/// The fingerprints of the master keys that the database needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MasterKeysInUse {
    /// The master key with which we encrypt and authenticate new rows.
    pub current: String,
    /// Master keys that may still be needed to read older rows.
    pub previous: Vec<String>,
}

/// Finds the master keys that the database needs.
pub async fn find(conn: &mut Conn) -> Result<MasterKeysInUse, StoreError> {
    let fingerprints: Vec<_> = conn.list_rows(LIST_MASTER_KEYS, params![], |row| row::get(row, "fingerprint")).await?;
    let mut fingerprints = fingerprints.into_iter();
    let current = fingerprints.next().ok_or(StoreError::UnexpectedRowCount("deployment"))?;
    Ok(MasterKeysInUse { current, previous: fingerprints.collect() })
}

/// Makes a master key current. The replaced master key is needed until [`remove_previous`] is called for it.
pub async fn replace_current(conn: &mut Conn, fingerprint: &str, now: Timestamp) -> Result<(), StoreError> {
    let MasterKeysInUse { current, .. } = find(conn).await?;
    conn.apply(INSERT_PREVIOUS, params![current, now]).await?;
    conn.apply(SET_CURRENT, params![fingerprint]).await
}

/// Records that no row needs a previous master key any more.
pub async fn remove_previous(conn: &mut Conn, fingerprint: &str) -> Result<(), StoreError> {
    conn.apply(DELETE_PREVIOUS, params![fingerprint]).await
}

/// The fingerprint of the first master key, which never changes.
pub async fn find_first(conn: &mut Conn) -> Result<String, StoreError> {
    conn.read_row(FIND_FIRST, params![], |row| row::get(row, "fingerprint")).await
}
