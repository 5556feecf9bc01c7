//! Shortens the audit log after its first entries were written to an archive.
//!
//! One transaction records what was archived, and only then the entries are deleted. A rotation of the master key verifies the same
//! entries in several transactions, so nothing is deleted until the rotation is complete.

use crate::{
    domain::audit::{AuditAction, Initiator, NewAuditEntry, keys::ChainMark},
    operations::OperationError,
    store::{
        Store, StoreError, WriteTransaction, audit, deployment,
        master_keys::{self, MasterKeysInUse},
    },
};
use std::time::Duration;

/// Number of entries that one transaction deletes.
const ENTRIES_PER_TRANSACTION: i64 = 500;

/// Pause after a transaction, so that other writers get their turn.
const PAUSE: Duration = Duration::from_millis(10);

/// Number of chains that are read at once.
const CHAINS_PER_READ: i64 = 1000;

/// The entries of one chain that were archived.
#[derive(Debug, Clone)]
pub struct ArchivedChain {
    /// The chain.
    pub chain: String,
    /// The floor of the chain when its entries were verified.
    pub before: Option<ChainMark>,
    /// The sequence number of the last archived entry.
    pub length: i64,
    /// The hash of the last archived entry.
    pub hash: String,
}

/// An archive that is complete on disk.
#[derive(Debug)]
pub struct AuditArchive {
    /// The chains with entries in the archive.
    pub chains: Vec<ArchivedChain>,
    /// Number of entries.
    pub entries: u64,
    /// SHA-256 of the archive, hex.
    pub sha256: String,
}

/// Why the archive was not recorded, or the deletion did not continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ArchiveConflict {
    /// A rotation of the master key is not complete.
    #[error(
        "a rotation of the master key is not complete: complete it with `secrets rotate`, then run this command again"
    )]
    RotationInProgress,
    /// Another process has archived entries of the same chains.
    #[error("another process archives the audit log at the same time")]
    ArchivedElsewhere,
}

/// Records that the entries of an archive are no longer needed in the database, with an audit entry.
pub async fn record_audit_archive(
    store: &Store,
    archive: &AuditArchive,
) -> Result<Result<(), ArchiveConflict>, OperationError> {
    let work = async |mut tx: WriteTransaction| {
        let Some(fingerprint) = lock_master_key(&mut tx).await? else {
            return Ok(tx.commit(Err(ArchiveConflict::RotationInProgress)).await?);
        };
        let keys = store.audit_keys().find(&fingerprint).ok_or(StoreError::MissingMasterKey(fingerprint))?;
        for ArchivedChain { chain, before, .. } in &archive.chains {
            if audit::find_floor(tx.conn(), chain).await? != *before {
                return Ok(tx.commit(Err(ArchiveConflict::ArchivedElsewhere)).await?);
            }
        }
        for ArchivedChain { chain, length, hash, .. } in &archive.chains {
            audit::set_floor(tx.conn(), keys, chain, *length, hash).await?;
        }
        let entry = NewAuditEntry::for_deployment(AuditAction::AuditArchived)
            .with_detail("entries", archive.entries)
            .with_detail("chains", archive.chains.len())
            .with_detail("sha256", archive.sha256.as_str());
        tx.audit(&Initiator::SYSTEM, &entry).await?;
        Ok::<_, OperationError>(tx.commit(Ok(())).await?)
    };
    store.write("record_audit_archive", work).await
}

/// Deletes all archived entries, also those that an interrupted run left. Returns their number.
pub async fn delete_archived_entries(store: &Store) -> Result<Result<u64, ArchiveConflict>, OperationError> {
    let (mut after, mut total) = (String::new(), 0);
    loop {
        let mut read = store.read().await?;
        let chains = audit::list_chains_to_shorten(read.conn(), &after, CHAINS_PER_READ).await?;
        drop(read);
        let Some((last, _)) = chains.last() else { return Ok(Ok(total)) };
        after.clone_from(last);
        for (chain, length) in &chains {
            loop {
                match delete_batch(store, chain, *length).await? {
                    Ok(0) => break,
                    Ok(deleted) => total += deleted,
                    Err(conflict) => return Ok(Err(conflict)),
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn delete_batch(store: &Store, chain: &str, length: i64) -> Result<Result<u64, ArchiveConflict>, OperationError> {
    let work = async |mut tx: WriteTransaction| {
        if lock_master_key(&mut tx).await?.is_none() {
            return Ok(tx.commit(Err(ArchiveConflict::RotationInProgress)).await?);
        }
        let deleted = audit::delete_archived(tx.conn(), chain, length, ENTRIES_PER_TRANSACTION).await?;
        Ok::<_, OperationError>(tx.commit(Ok(deleted)).await?)
    };
    store.write_alone("delete_archived_entries", work).await
}

/// Excludes rotations of the master key until the transaction ends. Returns its fingerprint; `None` if a rotation is not complete.
async fn lock_master_key(tx: &mut WriteTransaction) -> Result<Option<String>, OperationError> {
    deployment::lock(tx.conn()).await?;
    let MasterKeysInUse { current, previous } = master_keys::find(tx.conn()).await?;
    Ok(previous.is_empty().then_some(current))
}
