//! The checkpoints of audit chains. A rotation of the master key verifies each chain, and writes a checkpoint that authenticates
//! the verified entries with the new key, so that the old key is not needed any more.

use super::{
    accepted_keys,
    floors::{new_verifier, upsert_floor},
    lock_head, mark_from_row, update_head, verify_rest,
};
use crate::{
    domain::audit::{
        chain::{BrokenChain, ChainVerifier},
        keys::{AuditKeyRing, ChainMark},
    },
    store::{Conn, StoreError, query::params, row, statements::statements},
};

statements! { STATEMENTS:
    FIND_CHECKPOINT = "SELECT length, hash, mac FROM audit_checkpoints WHERE chain = $1";
    UPSERT_CHECKPOINT = "INSERT INTO audit_checkpoints (chain, length, hash, mac) VALUES ($1, $2, $3, $4) \
         ON CONFLICT (chain) DO UPDATE SET length = excluded.length, hash = excluded.hash, mac = excluded.mac";
    LIST_HEADS = "SELECT chain FROM audit_heads WHERE chain > $1 ORDER BY chain LIMIT $2 + 0";
}

/// Lists up to `limit` audit chains with a head, in the order of their names, and after the name `after`.
pub async fn list_chains_with_head(conn: &mut Conn, after: &str, limit: i64) -> Result<Vec<String>, StoreError> {
    conn.list_rows(LIST_HEADS, params![after, limit], |row| row::get(row, "chain")).await
}

/// Whether an audit chain has a checkpoint of the current master key.
pub enum ChainCheckpoint<'a> {
    /// The chain has a valid checkpoint of the current master key.
    Current,
    /// The chain has no such checkpoint yet. It must be verified before we write one.
    Missing(ChainVerifier<'a>),
    /// Somebody has changed the stored checkpoint or floor of the chain.
    Broken(BrokenChain),
}

/// Begins to write the checkpoint of an audit chain.
pub async fn begin_checkpoint<'a>(
    conn: &mut Conn,
    keys: &'a AuditKeyRing,
    chain: &'a str,
) -> Result<ChainCheckpoint<'a>, StoreError> {
    let (keys, checkpoint) = (accepted_keys(conn, keys).await?, find_checkpoint(conn, chain).await?);
    if checkpoint.as_ref().is_some_and(|checkpoint| keys.current.is_valid_checkpoint(chain, checkpoint)) {
        return Ok(ChainCheckpoint::Current);
    }
    let verifier = new_verifier(conn, keys, chain).await?;
    Ok(verifier.map_or_else(ChainCheckpoint::Broken, ChainCheckpoint::Missing))
}

/// Verifies the remaining entries and the head of an audit chain, and writes its checkpoint. Locks the chain until the transaction
/// ends. For a broken chain, the checkpoint covers the entries before the break. The head of a broken chain stays as it is, and is
/// not valid under the current key.
pub async fn write_checkpoint(
    conn: &mut Conn,
    mut verifier: ChainVerifier<'_>,
) -> Result<Result<(), BrokenChain>, StoreError> {
    let (chain, keys) = (verifier.chain(), verifier.current_keys());
    let head = lock_head(conn, chain).await?;
    let rest = verify_rest(conn, &mut verifier, &mut |_| ()).await?;
    if let Err(broken) = rest.and_then(|()| verifier.finish(head.as_ref())) {
        return write_checkpoint_before_break(conn, &verifier, broken).await;
    }
    let ChainMark { length, hash, .. } = head.unwrap_or_default();
    upsert_checkpoint(conn, chain, keys.checkpoints.mark(chain, length, &hash)).await?;
    renew_floor(conn, &verifier).await?;
    update_head(conn, chain, &keys.heads.mark(chain, length, &hash)).await?;
    Ok(Ok(()))
}

async fn write_checkpoint_before_break(
    conn: &mut Conn,
    verifier: &ChainVerifier<'_>,
    broken: BrokenChain,
) -> Result<Result<(), BrokenChain>, StoreError> {
    if let Some(checkpoint) = verifier.checkpoint_before_break() {
        upsert_checkpoint(conn, verifier.chain(), checkpoint).await?;
    }
    renew_floor(conn, verifier).await?;
    Ok(Err(broken))
}

/// Authenticates the floor of a chain with the current key.
async fn renew_floor(conn: &mut Conn, verifier: &ChainVerifier<'_>) -> Result<(), StoreError> {
    if let Some(floor) = verifier.renewed_floor() {
        upsert_floor(conn, verifier.chain(), &floor).await?;
    }
    Ok(())
}

async fn upsert_checkpoint(conn: &mut Conn, chain: &str, checkpoint: ChainMark) -> Result<(), StoreError> {
    let ChainMark { length, hash, mac } = checkpoint;
    conn.apply(UPSERT_CHECKPOINT, params![chain, length, hash, mac]).await
}

/// Finds the checkpoint of a chain. If a column is invalid, returns a checkpoint with an empty MAC, which is never valid.
pub(super) async fn find_checkpoint(conn: &mut Conn, chain: &str) -> Result<Option<ChainMark>, StoreError> {
    conn.find_row(FIND_CHECKPOINT, params![chain], |row| Ok(mark_from_row(row).unwrap_or_default())).await
}
