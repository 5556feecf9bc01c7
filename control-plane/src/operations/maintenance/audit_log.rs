//! Starts the audit log of a new database, and deletes the first entries of audit chains after an administrator has archived them.
//!
//! One transaction records what was archived, and only then we delete the entries. A rotation of the master key verifies the same
//! entries in several transactions, so we delete nothing until the rotation is complete.

use crate::{
    domain::audit::{AuditAction, Initiator, NewAuditEntry, keys::ChainMark},
    operations::OperationError,
    store::{
        Store, StoreError, WriteTransaction, audit, deployment,
        master_keys::{self, MasterKeysInUse},
    },
};
use std::time::Duration;

/// Maximum number of entries that one transaction deletes.
const ENTRIES_PER_TRANSACTION: i64 = 500;

/// Pause after a transaction, so that other writers get their turn.
const PAUSE: Duration = Duration::from_millis(10);

const CHAINS_PER_READ: i64 = 1000;

/// Starts the audit chain of the Countersign deployment, and a chain for each service that has none. Does nothing if the audit log
/// was started before: a chain that is missing now was removed, and `audit verify` must report it.
pub async fn ensure_audit_started(store: &Store) -> Result<(), OperationError> {
    let work = async |mut tx: WriteTransaction| {
        if !audit::lock_and_check_started(tx.conn()).await? {
            tx.audit(&Initiator::SYSTEM, &NewAuditEntry::for_deployment(AuditAction::AuditBegan)).await?;
            for service in audit::services_without_chain(tx.conn()).await? {
                tx.audit(&Initiator::SYSTEM, &NewAuditEntry::for_service(service, AuditAction::AuditBegan)).await?;
            }
        }
        Ok::<_, OperationError>(tx.commit(()).await?)
    };
    store.write("ensure_audit_started", work).await
}

/// The entries of one chain that were archived.
#[derive(Debug, Clone)]
pub struct ArchivedChain {
    pub chain: String,
    /// The floor of the chain (its last archived entry) when the archive was made; `None` if nothing was archived before.
    pub previous_floor: Option<ChainMark>,
    /// How many entries of the chain are archived now, in this archive and in earlier ones.
    pub archived: i64,
    /// The hash of the last archived entry.
    pub hash: String,
}

/// An archive that is complete on disk.
#[derive(Debug)]
pub struct AuditArchive {
    pub chains: Vec<ArchivedChain>,
    pub entries: u64,
    /// SHA-256 of the archive, hex.
    pub sha256: String,
}

/// Records that the entries of an archive are no longer needed in the database, with an audit entry.
pub async fn record_audit_archive(store: &Store, archive: &AuditArchive) -> Result<(), OperationError> {
    let work = async |mut tx: WriteTransaction| {
        let fingerprint = lock_master_key(&mut tx).await?;
        let keys = store.audit_keys().find(&fingerprint).ok_or(StoreError::MissingMasterKey(fingerprint))?;
        for ArchivedChain { chain, previous_floor, .. } in &archive.chains {
            if audit::find_floor(tx.conn(), chain).await? != *previous_floor {
                return Err(conflict("another process has archived audit entries meanwhile: run this command again"));
            }
        }
        for ArchivedChain { chain, archived, hash, .. } in &archive.chains {
            audit::set_floor(tx.conn(), keys, chain, *archived, hash).await?;
        }
        let entry = NewAuditEntry::for_deployment(AuditAction::AuditArchived)
            .with_detail("entries", archive.entries)
            .with_detail("chains", archive.chains.len())
            .with_detail("sha256", archive.sha256.as_str());
        tx.audit(&Initiator::SYSTEM, &entry).await?;
        Ok(tx.commit(()).await?)
    };
    store.write("record_audit_archive", work).await
}

/// Deletes all archived entries, including those that an interrupted run has left. Returns their number.
pub async fn delete_archived_entries(store: &Store) -> Result<u64, OperationError> {
    let (mut after, mut total) = (String::new(), 0);
    loop {
        let mut read = store.read().await?;
        let chains = audit::list_chains_to_shorten(read.conn(), &after, CHAINS_PER_READ).await?;
        drop(read);
        let Some((last, _)) = chains.last() else { return Ok(total) };
        after.clone_from(last);
        for (chain, archived) in &chains {
            loop {
                let deleted = delete_batch(store, chain, *archived).await?;
                if deleted == 0 {
                    break;
                }
                total += deleted;
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn delete_batch(store: &Store, chain: &str, archived: i64) -> Result<u64, OperationError> {
    let work = async |mut tx: WriteTransaction| {
        lock_master_key(&mut tx).await?;
        let deleted = audit::delete_archived(tx.conn(), chain, archived, ENTRIES_PER_TRANSACTION).await?;
        Ok(tx.commit(deleted).await?)
    };
    store.write_alone("delete_archived_entries", work).await
}

/// Prevents rotations of the master key until the transaction ends, and returns the fingerprint of the key. Fails if an earlier
/// rotation is not complete.
async fn lock_master_key(tx: &mut WriteTransaction) -> Result<String, OperationError> {
    deployment::lock(tx.conn()).await?;
    let MasterKeysInUse { current, previous } = master_keys::find(tx.conn()).await?;
    if previous.is_empty() {
        return Ok(current);
    }
    Err(conflict(
        "a rotation of the master key is not complete: complete it with `secrets rotate`, then run this command again",
    ))
}

fn conflict(reason: &str) -> OperationError {
    OperationError::Conflict(reason.to_owned())
}
