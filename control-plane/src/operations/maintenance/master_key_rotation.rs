//! Rotates the master key while control planes serve.
//!
//! The first transaction makes the new master key current: from then on, all control planes encrypt and authenticate with it.
//! Small transactions then encrypt the stored secrets again, and write a checkpoint for each audit chain. A killed rotation is
//! resumed by running it again: what is done already is recognized by opening it with the new key. Only after everything was
//! found to be under the new key does the last transaction record that the previous keys are not needed.

use crate::{
    domain::audit::{AuditAction, Initiator, NewAuditEntry, chain::BrokenChain},
    keyring::{Keyring, Resealed},
    operations::OperationError,
    store::{
        Store, StoreError, WriteTransaction,
        audit::{self, ChainCheckpoint},
        deployment,
        master_keys::{self, MasterKeysInUse},
        sealed_secrets::{self, SecretOwner, StoredSecret},
    },
};
use countersign_process::Rng;

/// Number of webhook targets whose secrets are encrypted again in one transaction.
const SECRETS_PER_TRANSACTION: i64 = 100;

/// Number of audit chains that are listed at once.
const CHAINS_PER_READ: i64 = 500;

/// The result of a rotation.
#[derive(Debug, Default)]
pub struct MasterKeyRotation {
    /// Fingerprints of the master keys that the database no longer needs.
    pub removed: Vec<String>,
    /// Number of secrets that this run encrypted again.
    pub resealed: u64,
    /// Number of secrets that were encrypted with the new key before.
    pub unchanged: u64,
    /// Secrets that no configured master key decrypts.
    pub unreadable: Vec<SecretOwner>,
    /// Number of audit chains that this run verified, and for which it wrote a checkpoint of the new key.
    pub chains: u64,
    /// Number of audit chains that had a checkpoint of the new key before. This run did not verify them.
    pub unchanged_chains: u64,
    /// Audit chains that are broken, and stay broken.
    pub broken_chains: Vec<(String, BrokenChain)>,
}

/// Rotates to the configured master key. If a secret is unreadable, the previous master keys are still needed.
pub async fn rotate_master_key(
    store: &Store,
    keyring: &Keyring,
    rng: &dyn Rng,
) -> Result<MasterKeyRotation, OperationError> {
    let to = &keyring.master_keys().configured_fingerprint();
    let previous = replace_current(store, to).await?;
    // A transaction that began before may still append to an audit chain with the replaced key.
    store.wait_for_audit_appends().await?;
    let mut rotation = MasterKeyRotation::default();
    reseal_signing_keys(store, keyring, rng, to, &mut rotation).await?;
    reseal_webhook_secrets(store, keyring, rng, to, &mut rotation).await?;
    write_checkpoints(store, to, &mut rotation).await?;
    if rotation.unreadable.is_empty() {
        remove_previous(store, to, &previous).await?;
        rotation.removed = previous;
    }
    Ok(rotation)
}

/// Makes the master key current, unless it is already. Returns the previous master keys.
async fn replace_current(store: &Store, to: &str) -> Result<Vec<String>, OperationError> {
    let work = async |mut tx: WriteTransaction| {
        deployment::lock(tx.conn()).await?;
        let MasterKeysInUse { current, previous } = master_keys::find(tx.conn()).await?;
        if current == to {
            return Ok(tx.commit(previous).await?);
        }
        // Some chains have checkpoints of both keys, and entries of the other key after them. Only a completed rotation leaves
        // chains that one key authenticates.
        if previous.iter().any(|fingerprint| fingerprint == to) {
            return Err(OperationError::Conflict(format!(
                "the rotation from the master key with the fingerprint {to} to the one with the fingerprint {current} is not \
                 complete: complete it first, with that key as secrets.master_key and this one in secrets.previous_master_keys"
            )));
        }
        let now = tx.now();
        master_keys::replace_current(tx.conn(), to, now).await?;
        let entry = NewAuditEntry::for_deployment(AuditAction::MasterKeyRotated).with_detail("fingerprint", to);
        tx.audit(&Initiator::SYSTEM, &entry).await?;
        let MasterKeysInUse { previous, .. } = master_keys::find(tx.conn()).await?;
        Ok::<_, OperationError>(tx.commit(previous).await?)
    };
    store.write("replace_master_key", work).await
}

async fn reseal_signing_keys(
    store: &Store,
    keyring: &Keyring,
    rng: &dyn Rng,
    to: &str,
    rotation: &mut MasterKeyRotation,
) -> Result<(), OperationError> {
    loop {
        let stored = sealed_secrets::list_signing_keys(store.read().await?.conn()).await?;
        if reseal(store, keyring, rng, to, stored, rotation).await? {
            return Ok(());
        }
    }
}

async fn reseal_webhook_secrets(
    store: &Store,
    keyring: &Keyring,
    rng: &dyn Rng,
    to: &str,
    rotation: &mut MasterKeyRotation,
) -> Result<(), OperationError> {
    let mut after = None;
    loop {
        let mut read = store.read().await?;
        let page = sealed_secrets::list_webhook_secrets(read.conn(), after, SECRETS_PER_TRANSACTION).await?;
        drop(read);
        let Some((last, _)) = page.last() else { return Ok(()) };
        let last = *last;
        let stored = page.into_iter().flat_map(|(_, secrets)| secrets).collect();
        if reseal(store, keyring, rng, to, stored, rotation).await? {
            after = Some(last);
        }
    }
}

/// Encrypts secrets with the master key `to`. Returns false if a secret has changed since it was read: the caller must read the
/// secrets again, because the rotation of a webhook secret moves a secret to another column.
async fn reseal(
    store: &Store,
    keyring: &Keyring,
    rng: &dyn Rng,
    to: &str,
    stored: Vec<StoredSecret>,
    rotation: &mut MasterKeyRotation,
) -> Result<bool, OperationError> {
    let (mut changed, mut unchanged, mut unreadable) = (Vec::new(), 0, Vec::new());
    for secret in stored {
        match keyring.reseal(&secret, rng)? {
            Resealed::Unchanged => unchanged += 1,
            Resealed::Changed(sealed) => changed.push((secret, sealed)),
            Resealed::Unreadable => unreadable.push(secret.owner),
        }
    }
    let replaced = if changed.is_empty() { 0 } else { replace_secrets(store, to, &changed).await? };
    rotation.resealed += replaced as u64;
    let is_complete = replaced == changed.len();
    if is_complete {
        rotation.unchanged += unchanged;
        rotation.unreadable.extend(unreadable);
    }
    Ok(is_complete)
}

async fn replace_secrets(store: &Store, to: &str, changed: &[(StoredSecret, String)]) -> Result<usize, OperationError> {
    let work = async |mut tx: WriteTransaction| {
        lock_current(&mut tx, to).await?;
        let mut replaced = 0;
        for (stored, sealed) in changed {
            replaced += usize::from(sealed_secrets::replace(tx.conn(), stored, sealed).await?);
        }
        Ok::<_, OperationError>(tx.commit(replaced).await?)
    };
    store.write_alone("reseal_secrets", work).await
}

async fn write_checkpoints(store: &Store, to: &str, rotation: &mut MasterKeyRotation) -> Result<(), OperationError> {
    let mut after = String::new();
    loop {
        let mut read = store.read().await?;
        let chains = audit::list_chains_with_head(read.conn(), &after, CHAINS_PER_READ).await?;
        drop(read);
        let Some(last) = chains.last() else { return Ok(()) };
        after.clone_from(last);
        for chain in chains {
            match write_checkpoint(store, to, &chain).await? {
                Ok(true) => rotation.chains += 1,
                Ok(false) => rotation.unchanged_chains += 1,
                Err(broken) => rotation.broken_chains.push((chain, broken)),
            }
        }
    }
}

/// Verifies a chain and writes its checkpoint, unless the chain has a checkpoint of the new key already; returns whether it did.
/// Reads most entries before the transaction that locks the chain.
async fn write_checkpoint(store: &Store, to: &str, chain: &str) -> Result<Result<bool, BrokenChain>, OperationError> {
    let keys = store.audit_keys();
    let mut verifier = {
        let mut read = store.read().await?;
        match audit::begin_checkpoint(read.conn(), keys, chain).await? {
            ChainCheckpoint::Current => return Ok(Ok(false)),
            ChainCheckpoint::Broken(broken) => return Ok(Err(broken)),
            ChainCheckpoint::Missing(verifier) => verifier,
        }
    };
    loop {
        match audit::verify_batch(store.read().await?.conn(), &mut verifier).await? {
            // If the chain is broken, the transaction finds the break again, and writes the checkpoint of the entries before it.
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
    }
    let verifier = &verifier;
    let work = async |mut tx: WriteTransaction| {
        let written = audit::write_checkpoint(tx.conn(), verifier.clone()).await?;
        // The lock of the chain excludes appends; a concurrent rotation to a third key must not be overwritten.
        require_current(&mut tx, to).await?;
        Ok::<_, OperationError>(tx.commit(written.map(|()| true)).await?)
    };
    store.write_alone("write_audit_checkpoint", work).await
}

async fn remove_previous(store: &Store, to: &str, previous: &[String]) -> Result<(), OperationError> {
    let work = async |mut tx: WriteTransaction| {
        lock_current(&mut tx, to).await?;
        for fingerprint in previous {
            master_keys::remove_previous(tx.conn(), fingerprint).await?;
        }
        Ok::<_, OperationError>(tx.commit(()).await?)
    };
    store.write("remove_previous_master_keys", work).await
}

/// Excludes transactions that store secrets, and rotations, until the transaction ends.
async fn lock_current(tx: &mut WriteTransaction, to: &str) -> Result<(), OperationError> {
    deployment::lock(tx.conn()).await?;
    require_current(tx, to).await
}

/// Fails if another rotation has made another master key current.
async fn require_current(tx: &mut WriteTransaction, to: &str) -> Result<(), OperationError> {
    let current = master_keys::find(tx.conn()).await?.current;
    if current == to { Ok(()) } else { Err(StoreError::MissingMasterKey(current).into()) }
}
