//! The floors of audit chains. A floor says how many entries of a chain were archived, and has the hash of the last of them.

use super::{checkpoints::find_checkpoint, mark_from_row};
use crate::{
    domain::audit::{
        chain::{BrokenChain, ChainVerifier},
        keys::{AcceptedAuditKeys, AuditKeys, ChainMark},
    },
    store::{Conn, StoreError, query::params, row, statements::statements},
};
use sqlx::any::AnyRow;

statements! { STATEMENTS:
    FIND_FLOOR = "SELECT length, hash, mac FROM audit_floors WHERE chain = $1";
    LIST_CHAINS_TO_SHORTEN = "SELECT f.chain, f.length FROM audit_floors f WHERE f.chain > $1 AND EXISTS \
         (SELECT 1 FROM audit_entries l WHERE l.chain = f.chain AND l.sequence <= f.length) ORDER BY f.chain LIMIT $2 + 0";
    UPSERT_FLOOR = "INSERT INTO audit_floors (chain, length, hash, mac) VALUES ($1, $2, $3, $4) \
         ON CONFLICT (chain) DO UPDATE SET length = excluded.length, hash = excluded.hash, mac = excluded.mac";
    DELETE_ARCHIVED = "DELETE FROM audit_entries WHERE chain = $1 AND sequence IN \
         (SELECT sequence FROM audit_entries WHERE chain = $1 AND sequence <= $2 ORDER BY sequence LIMIT $3 + 0)";
}

/// Finds the floor of a chain. If a column is invalid, returns a floor with an empty MAC, which is never valid.
pub async fn find_floor(conn: &mut Conn, chain: &str) -> Result<Option<ChainMark>, StoreError> {
    conn.find_row(FIND_FLOOR, params![chain], |row| Ok(mark_from_row(row).unwrap_or_default())).await
}

/// Lists up to `limit` chains after `after` with archived entries to delete, and how many entries of each are archived in all.
pub async fn list_chains_to_shorten(
    conn: &mut Conn,
    after: &str,
    limit: i64,
) -> Result<Vec<(String, i64)>, StoreError> {
    let chain_and_length = |row: &AnyRow| Ok((row::get(row, "chain")?, row::get(row, "length")?));
    conn.list_rows(LIST_CHAINS_TO_SHORTEN, params![after, limit], chain_and_length).await
}

/// Sets the floor of a chain. The first `length` entries were verified and archived, and `hash` is the hash of the last of them.
pub async fn set_floor(
    conn: &mut Conn,
    keys: &AuditKeys,
    chain: &str,
    length: i64,
    hash: &str,
) -> Result<(), StoreError> {
    upsert_floor(conn, chain, &keys.floors.mark(chain, length, hash)).await
}

pub(super) async fn upsert_floor(conn: &mut Conn, chain: &str, floor: &ChainMark) -> Result<(), StoreError> {
    let ChainMark { length, hash, mac } = floor;
    conn.apply(UPSERT_FLOOR, params![chain, length, hash, mac]).await
}

/// Deletes up to `limit` of the first `length` entries of a chain. Begins with the oldest, so that the hash of the floor
/// authenticates the remaining ones. Returns the number of deleted entries.
pub async fn delete_archived(conn: &mut Conn, chain: &str, length: i64, limit: i64) -> Result<u64, StoreError> {
    conn.count_changes(DELETE_ARCHIVED, params![chain, length, limit]).await
}

/// A verifier that begins at the floor of an audit chain.
pub(super) async fn new_verifier<'a>(
    conn: &mut Conn,
    keys: AcceptedAuditKeys<'a>,
    chain: &'a str,
) -> Result<Result<ChainVerifier<'a>, BrokenChain>, StoreError> {
    let (checkpoint, floor) = (find_checkpoint(conn, chain).await?, find_floor(conn, chain).await?);
    Ok(ChainVerifier::new(keys, chain, checkpoint).and_then(|verifier| verifier.with_floor(floor)))
}
