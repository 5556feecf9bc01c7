//! The audit log. An audit entry is appended in the same transaction as the action that it records. Each service and the deployment
//! have an audit chain. The head of a chain is the number of its entries and the hash of the last one, with a MAC.

/// All columns of audit entries. The modules below use this macro, so it precedes them.
macro_rules! columns {
    () => {
        "chain, sequence, at, action, actor_kind, actor_issuer, actor_id, address, request_id, agent_id, object_kind, \
         object_id, details, previous_hash, hash, mac"
    };
}

mod checkpoints;
mod floors;
mod list;

#[cfg(test)]
pub(in crate::store) use checkpoints::STATEMENTS as CHECKPOINT_STATEMENTS;
pub use checkpoints::{ChainCheckpoint, begin_checkpoint, list_chains_with_head, write_checkpoint};
#[cfg(test)]
pub(in crate::store) use floors::STATEMENTS as FLOOR_STATEMENTS;
pub use floors::{delete_archived, find_floor, list_chains_to_shorten, set_floor};
#[cfg(test)]
pub(in crate::store) use list::STATEMENTS as LIST_STATEMENTS;
pub use list::{AuditFilter, AuditPosition, list};

use super::{
    Conn, StoreError,
    master_keys::{self, MasterKeysInUse},
    query::params,
    row,
    statements::statements,
};
use crate::domain::{
    audit::{
        AuditAction, Initiator, NewAuditEntry,
        chain::{AuditEntry, BrokenChain, ChainFault, ChainVerifier},
        keys::{AcceptedAuditKeys, AuditKeyRing, ChainMark},
    },
    service::DEPLOYMENT_CHAIN,
};
use checkpoints::find_checkpoint;
use countersign_identity::{ServiceId, Timestamp};
use floors::new_verifier;
use sqlx::any::AnyRow;

statements! { STATEMENTS:
    LOCK_HEAD = "INSERT INTO audit_heads (chain, length, hash, mac) VALUES ($1, 0, '', '') \
         ON CONFLICT (chain) DO UPDATE SET length = audit_heads.length RETURNING length, hash, mac";
    INSERT_ENTRY = concat!(
        "INSERT INTO audit_entries (", columns!(), ") VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)"
    );
    UPDATE_HEAD = "UPDATE audit_heads SET length = $1, hash = $2, mac = $3 WHERE chain = $4";
    FIND_HEAD = "SELECT length, hash, mac FROM audit_heads WHERE chain = $1";
    FIND_LAST_ENTRY = "SELECT sequence AS length, hash, 'lost' AS mac, action FROM audit_entries WHERE chain = $1 \
         ORDER BY sequence DESC LIMIT 1";
    ANY_CHAIN = "SELECT chain FROM audit_heads WHERE length <> 0 UNION ALL SELECT chain FROM audit_entries LIMIT 1";
    SERVICES_WITHOUT_CHAIN =
        "SELECT id FROM services WHERE id NOT IN (SELECT chain FROM audit_heads) ORDER BY id";
    NEWEST_ENTRY_TIME = "SELECT MAX(at + 0) AS at FROM audit_entries";
    LIST_CHAINS = "SELECT $1 AS chain UNION SELECT id FROM services UNION SELECT chain FROM audit_heads \
         UNION SELECT DISTINCT chain FROM audit_entries ORDER BY 1";
    LIST_NEXT_ENTRIES = concat!(
        "SELECT ", columns!(), " FROM audit_entries WHERE chain = $1 AND sequence > $2 ORDER BY sequence LIMIT $3 + 0"
    );
}

/// Number of audit entries that are read at once to verify an audit chain.
const BATCH_SIZE: i64 = 500;

/// The MAC of a head that we rebuilt from the entries. It is never valid, so the verification of the chain fails.
const INVALID_MAC: &str = "lost";

/// Appends an entry to its audit chain, and returns its position. Locks the head of the audit chain until the transaction ends,
/// which serializes the writers of one audit chain. The chain of a deleted service is sealed: no entry follows the deletion.
pub async fn append(
    conn: &mut Conn,
    keys: &AuditKeyRing,
    initiator: &Initiator,
    entry: &NewAuditEntry,
    now: Timestamp,
) -> Result<i64, StoreError> {
    let chain = entry.chain.audit_chain();
    let (head, (last, is_sealed)) = (lock_head(conn, &chain).await?, rebuild_head(conn, &chain).await?);
    if is_sealed {
        return Err(StoreError::AuditChainSealed);
    }
    // We read the keys after we have locked the chain, because a rotation replaces the master key before it locks the chain.
    let keys = accepted_keys(conn, keys).await?;
    // If the head counts fewer entries than the chain has, somebody has changed the head.
    let mut valid = head.filter(|head| head.length >= last.length);
    if let Some(head) = &valid
        && !is_valid_head(conn, &keys, &chain, head).await?
    {
        valid = None;
    }
    if valid.is_none() {
        tracing::error!(chain, "the end of this audit chain was changed: run `audit verify`");
    }
    let is_valid = valid.is_some();
    let (entry, head) = keys.current.build_entry(&valid.unwrap_or(last), is_valid, entry, initiator, now);
    insert_entry(conn, &entry).await?;
    update_head(conn, &chain, &head).await?;
    Ok(head.length)
}

/// The audit keys of the current master key, and of previous master keys that the database still needs.
async fn accepted_keys<'a>(conn: &mut Conn, ring: &'a AuditKeyRing) -> Result<AcceptedAuditKeys<'a>, StoreError> {
    let MasterKeysInUse { current, previous } = master_keys::find(conn).await?;
    let find = |fingerprint: String| ring.find(&fingerprint).ok_or(StoreError::MissingMasterKey(fingerprint));
    let current = find(current)?;
    Ok(AcceptedAuditKeys { current, previous: previous.into_iter().map(find).collect::<Result<_, _>>()? })
}

/// Whether the MAC of a head is valid. A MAC of a previous master key is valid until the chain has a checkpoint of the current key,
/// which a rotation of the master key writes.
async fn is_valid_head(
    conn: &mut Conn,
    keys: &AcceptedAuditKeys<'_>,
    chain: &str,
    head: &ChainMark,
) -> Result<bool, StoreError> {
    let is_of_current_key = keys.current.is_valid_head(chain, head);
    if is_of_current_key || !keys.is_head_of_previous_key(chain, head) {
        return Ok(is_of_current_key);
    }
    let checkpoint = find_checkpoint(conn, chain).await?;
    Ok(!checkpoint.is_some_and(|checkpoint| keys.current.is_valid_checkpoint(chain, &checkpoint)))
}

async fn update_head(conn: &mut Conn, chain: &str, head: &ChainMark) -> Result<(), StoreError> {
    conn.must_change_row(UPDATE_HEAD, "append_audit", params![head.length, head.hash, head.mac, chain]).await
}

/// Locks the head of an audit chain and returns it. Creates a missing head. Returns `None` if a column of the head is invalid.
async fn lock_head(conn: &mut Conn, chain: &str) -> Result<Option<ChainMark>, StoreError> {
    conn.read_row(LOCK_HEAD, params![chain], |row| Ok(mark_from_row(row).ok())).await
}

/// Rebuilds the head of an audit chain from the last entry, with an invalid MAC. If the stored head of an audit chain is wrong,
/// the chain is continued from the rebuilt head and stays invalid. Also returns whether the last entry seals the audit chain.
async fn rebuild_head(conn: &mut Conn, chain: &str) -> Result<(ChainMark, bool), StoreError> {
    let head_and_seal = |row: &AnyRow| {
        let is_sealed = row::get::<String>(row, "action")? == AuditAction::ServiceDeleted.as_str();
        Ok((mark_from_row(row)?, is_sealed))
    };
    let last = conn.find_row(FIND_LAST_ENTRY, params![chain], head_and_seal).await?;
    Ok(last.unwrap_or_else(|| (ChainMark { mac: INVALID_MAC.to_owned(), ..ChainMark::default() }, false)))
}

async fn insert_entry(conn: &mut Conn, entry: &AuditEntry) -> Result<(), StoreError> {
    let parameters = params![
        entry.chain,
        entry.sequence,
        entry.at,
        entry.action,
        entry.actor_kind,
        entry.actor_issuer,
        entry.actor_id,
        entry.address,
        entry.request_id,
        entry.agent,
        entry.object_kind,
        entry.object_id,
        entry.details,
        entry.previous_hash,
        entry.hash,
        entry.mac,
    ];
    conn.apply(INSERT_ENTRY, parameters).await
}

/// Returns whether the audit log was started. Locks the head of the audit chain of the deployment, so that two replicas cannot both
/// start it. An entry in any chain proves that it was started. If only the chain of the deployment is missing, somebody removed it.
pub async fn lock_and_check_started(conn: &mut Conn) -> Result<bool, StoreError> {
    let head = lock_head(conn, DEPLOYMENT_CHAIN).await?;
    let started = conn.has_row(ANY_CHAIN, params![]).await?;
    if started && head == Some(ChainMark::default()) {
        tracing::error!(chain = DEPLOYMENT_CHAIN, "this audit chain was removed: run `audit verify`");
    }
    Ok(started)
}

/// Lists the services without an audit chain.
pub async fn services_without_chain(conn: &mut Conn) -> Result<Vec<ServiceId>, StoreError> {
    conn.list_rows(SERVICES_WITHOUT_CHAIN, params![], |row| row::parse(row, "id")).await
}

/// Finds the time of the newest audit entry; `None` if there are no audit entries.
pub async fn newest_entry_time(conn: &mut Conn) -> Result<Option<Timestamp>, StoreError> {
    conn.read_row(NEWEST_ENTRY_TIME, params![], |row| row::optional_timestamp(row, "at")).await
}

/// Lists the names of all audit chains that must exist, and of all audit chains with a head or an entry.
pub async fn list_chains(conn: &mut Conn) -> Result<Vec<String>, StoreError> {
    conn.list_rows(LIST_CHAINS, params![DEPLOYMENT_CHAIN], |row| row::get(row, "chain")).await
}

/// Verifies all entries of an audit chain that are in the database, and calls `visit` with each valid entry. Returns the head of
/// the chain, or where the chain is broken.
pub async fn verify_chain(
    conn: &mut Conn,
    keys: &AuditKeyRing,
    chain: &str,
    mut visit: impl FnMut(&AuditEntry),
) -> Result<Result<ChainMark, BrokenChain>, StoreError> {
    let keys = accepted_keys(conn, keys).await?;
    let mut verifier = match new_verifier(conn, keys, chain).await? {
        Ok(verifier) => verifier,
        Err(broken) => return Ok(Err(broken)),
    };
    if let Err(broken) = verify_rest(conn, &mut verifier, &mut visit).await? {
        return Ok(Err(broken));
    }
    let head = conn.find_row(FIND_HEAD, params![chain], |row| Ok(mark_from_row(row).ok())).await?.flatten();
    Ok(verifier.finish(head.as_ref()).map(|()| head.unwrap_or_default()))
}

/// Verifies the remaining entries of an audit chain.
async fn verify_rest(
    conn: &mut Conn,
    verifier: &mut ChainVerifier<'_>,
    visit: &mut impl FnMut(&AuditEntry),
) -> Result<Result<(), BrokenChain>, StoreError> {
    loop {
        match verify_batch(conn, verifier, visit).await? {
            Ok(0) => return Ok(Ok(())),
            Ok(_) => {}
            Err(broken) => return Ok(Err(broken)),
        }
    }
}

/// Verifies the next entries of an audit chain, and calls `visit` with each valid one. Returns their number, which is zero at the
/// end of the chain.
pub async fn verify_batch(
    conn: &mut Conn,
    verifier: &mut ChainVerifier<'_>,
    visit: &mut impl FnMut(&AuditEntry),
) -> Result<Result<usize, BrokenChain>, StoreError> {
    let parameters = params![verifier.chain(), verifier.last_read(), BATCH_SIZE];
    let entries: Vec<_> = conn.list_rows(LIST_NEXT_ENTRIES, parameters, |row| Ok(entry_from_row(row))).await?;
    for entry in &entries {
        let entry = entry.as_ref().map_err(|_| verifier.broken_at_next(ChainFault::Unreadable));
        if let Err(broken) = entry.and_then(|entry| verifier.verify_next(entry).map(|()| visit(entry))) {
            return Ok(Err(broken));
        }
    }
    Ok(Ok(entries.len()))
}

/// Reads the columns of a head, a checkpoint or a floor of an audit chain.
fn mark_from_row(row: &AnyRow) -> Result<ChainMark, StoreError> {
    Ok(ChainMark { length: row::get(row, "length")?, hash: row::get(row, "hash")?, mac: row::get(row, "mac")? })
}

fn entry_from_row(row: &AnyRow) -> Result<AuditEntry, StoreError> {
    Ok(AuditEntry {
        chain: row::get(row, "chain")?,
        sequence: row::get(row, "sequence")?,
        at: row::timestamp(row, "at")?,
        action: row::get(row, "action")?,
        actor_kind: row::get(row, "actor_kind")?,
        actor_issuer: row::get(row, "actor_issuer")?,
        actor_id: row::get(row, "actor_id")?,
        address: row::get(row, "address")?,
        request_id: row::get(row, "request_id")?,
        agent: row::get(row, "agent_id")?,
        object_kind: row::get(row, "object_kind")?,
        object_id: row::get(row, "object_id")?,
        details: row::get(row, "details")?,
        previous_hash: row::get(row, "previous_hash")?,
        hash: row::get(row, "hash")?,
        mac: row::get(row, "mac")?,
    })
}
