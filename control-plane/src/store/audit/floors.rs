//! The floors of audit chains: how many entries of each chain were archived. See [`AuditFloor`].

use super::{checkpoints::find_checkpoint, head_from_row};
use crate::{
    domain::audit::{
        chain::{BrokenChain, ChainHead, ChainVerifier},
        keys::{AcceptedAuditKeys, AuditFloor, AuditKeys},
    },
    store::{Conn, StoreError, row, statements::statements},
};

statements! { STATEMENTS:
    FIND_FLOOR = "SELECT length, hash, mac FROM audit_floors WHERE chain = $1";
    LIST_CHAINS_TO_SHORTEN = "SELECT f.chain, f.length FROM audit_floors f WHERE f.chain > $1 AND EXISTS \
         (SELECT 1 FROM audit_entries l WHERE l.chain = f.chain AND l.sequence <= f.length) ORDER BY f.chain LIMIT $2 + 0";
    UPSERT_FLOOR = "INSERT INTO audit_floors (chain, length, hash, mac) VALUES ($1, $2, $3, $4) \
         ON CONFLICT (chain) DO UPDATE SET length = excluded.length, hash = excluded.hash, mac = excluded.mac";
    DELETE_ARCHIVED = "DELETE FROM audit_entries WHERE chain = $1 AND sequence IN \
         (SELECT sequence FROM audit_entries WHERE chain = $1 AND sequence <= $2 ORDER BY sequence LIMIT $3 + 0)";
}

/// Finds the floor of a chain. A floor with an invalid column is returned with an empty MAC, which is never valid.
pub async fn find_floor(conn: &mut Conn, chain: &str) -> Result<Option<AuditFloor>, StoreError> {
    let row = sqlx::query(FIND_FLOOR).bind(chain).fetch_optional(conn).await?;
    Ok(row.as_ref().map(|row| {
        let ChainHead { length, hash, mac } = head_from_row(row).unwrap_or_default();
        AuditFloor { length, hash, mac }
    }))
}

/// Lists up to `limit` chains after `after` with archived entries that are not deleted yet, and the number of their archived entries.
pub async fn list_chains_to_shorten(
    conn: &mut Conn,
    after: &str,
    limit: i64,
) -> Result<Vec<(String, i64)>, StoreError> {
    let rows = sqlx::query(LIST_CHAINS_TO_SHORTEN).bind(after).bind(limit).fetch_all(conn).await?;
    rows.iter().map(|row| Ok((row::get(row, "chain")?, row::get(row, "length")?))).collect()
}

/// Sets the floor of a chain to verified entries that were archived.
pub async fn set_floor(
    conn: &mut Conn,
    keys: &AuditKeys,
    chain: &str,
    length: i64,
    hash: &str,
) -> Result<(), StoreError> {
    upsert_floor(conn, chain, &keys.floor(chain, length, hash)).await
}

pub(super) async fn upsert_floor(conn: &mut Conn, chain: &str, floor: &AuditFloor) -> Result<(), StoreError> {
    let AuditFloor { length, hash, mac } = floor;
    sqlx::query(UPSERT_FLOOR).bind(chain).bind(length).bind(hash).bind(mac).execute(conn).await?;
    Ok(())
}

/// Deletes up to `limit` of the first `length` entries of a chain, the oldest first: the hash of the floor authenticates those that
/// remain. Returns their number.
pub async fn delete_archived(conn: &mut Conn, chain: &str, length: i64, limit: i64) -> Result<u64, StoreError> {
    let query = sqlx::query(DELETE_ARCHIVED).bind(chain).bind(length).bind(limit);
    Ok(query.execute(conn).await?.rows_affected())
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
