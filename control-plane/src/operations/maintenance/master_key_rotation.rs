//! Rotates the master key while control planes serve.
//!
//! The first transaction makes the new master key current. From then on, all control planes encrypt and authenticate with it. Small
//! transactions then encrypt the stored secrets again, and write a checkpoint for each audit chain. To resume a killed rotation, run
//! it again: it skips whatever the new key already opens. When the new key opens everything, the last transaction records that the
//! previous keys are not needed any more.

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

/// Number of webhook targets whose secrets we encrypt again in one transaction.
const SECRETS_PER_TRANSACTION: i64 = 100;

const CHAINS_PER_READ: i64 = 500;

#[derive(Debug, Default)]
pub struct MasterKeyRotation {
    /// Fingerprints of the master keys that the database no longer needs.
    pub removed: Vec<String>,
    /// Number of secrets that this run encrypted again.
    pub resealed: u64,
    /// Number of secrets that were already encrypted with the new key.
    pub unchanged: u64,
    /// Secrets that no configured master key can decrypt.
    pub unreadable: Vec<SecretOwner>,
    /// Number of audit chains that this run verified, and for which it wrote a checkpoint of the new key.
    pub chains: u64,
    /// Number of audit chains that already had a checkpoint of the new key. This run did not verify them.
    pub unchanged_chains: u64,
    /// Audit chains that this run found broken. The rotation does not repair them.
    pub broken_chains: Vec<(String, BrokenChain)>,
}

/// Rotates to the configured master key. If a secret is unreadable, the previous master keys are not removed.
pub async fn rotate_master_key(
    store: &Store,
    keyring: &Keyring,
    rng: &dyn Rng,
) -> Result<MasterKeyRotation, OperationError> {
    let to = keyring.master_keys().configured().fingerprint();
    let mut run = Run { store, keyring, rng, to, rotation: MasterKeyRotation::default() };
    let previous = run.replace_current().await?;
    // A transaction that began earlier may still append to an audit chain with the replaced key. We wait for its end.
    store.wait_for_audit_appends().await?;
    run.reseal_signing_keys().await?;
    run.reseal_webhook_secrets().await?;
    run.write_checkpoints().await?;
    if run.rotation.unreadable.is_empty() {
        run.remove_previous(&previous).await?;
        run.rotation.removed = previous;
    }
    Ok(run.rotation)
}

struct Run<'a> {
    store: &'a Store,
    keyring: &'a Keyring,
    rng: &'a dyn Rng,
    /// Fingerprint of the new master key.
    to: String,
    rotation: MasterKeyRotation,
}

impl Run<'_> {
    /// Makes the new master key current, unless it is already. Returns the previous master keys.
    async fn replace_current(&self) -> Result<Vec<String>, OperationError> {
        let to = &self.to;
        let work = async |mut tx: WriteTransaction| {
            deployment::lock(tx.conn()).await?;
            let MasterKeysInUse { current, previous } = master_keys::find(tx.conn()).await?;
            if current == *to {
                return Ok(tx.commit(previous).await?);
            }
            // An incomplete rotation is replacing this key. Some chains already have checkpoints and entries of the newer key, so
            // neither key authenticates a whole chain. The incomplete rotation must be completed first.
            if previous.iter().any(|fingerprint| fingerprint == to) {
                return Err(OperationError::Conflict(format!(
                    "the rotation from the master key with the fingerprint {to} to the key with {current} is not complete: \
                     complete it first, with the second key as secrets.master_key and the first in secrets.previous_master_keys"
                )));
            }
            let now = tx.now();
            master_keys::replace_current(tx.conn(), to, now).await?;
            let entry =
                NewAuditEntry::for_deployment(AuditAction::MasterKeyRotated).with_detail("fingerprint", to.as_str());
            tx.audit(&Initiator::SYSTEM, &entry).await?;
            let MasterKeysInUse { previous, .. } = master_keys::find(tx.conn()).await?;
            Ok::<_, OperationError>(tx.commit(previous).await?)
        };
        self.store.write("replace_master_key", work).await
    }

    async fn reseal_signing_keys(&mut self) -> Result<(), OperationError> {
        loop {
            let stored = sealed_secrets::list_signing_keys(self.store.read().await?.conn()).await?;
            if self.reseal(stored).await? {
                return Ok(());
            }
        }
    }

    async fn reseal_webhook_secrets(&mut self) -> Result<(), OperationError> {
        let mut after = None;
        loop {
            let mut read = self.store.read().await?;
            let page = sealed_secrets::list_webhook_secrets(read.conn(), after, SECRETS_PER_TRANSACTION).await?;
            drop(read);
            let Some((last, _)) = page.last() else { return Ok(()) };
            let last = *last;
            let stored = page.into_iter().flat_map(|(_, secrets)| secrets).collect();
            if self.reseal(stored).await? {
                after = Some(last);
            }
        }
    }

    /// Encrypts secrets with the new master key. Returns false if a secret has changed since it was read. The caller must then read
    /// the secrets again: a rotation of the secret of a webhook moves the old secret to another column.
    async fn reseal(&mut self, stored: Vec<StoredSecret>) -> Result<bool, OperationError> {
        let (mut changed, mut unchanged, mut unreadable) = (Vec::new(), 0, Vec::new());
        for secret in stored {
            match self.keyring.reseal(&secret, self.rng)? {
                Resealed::Unchanged => unchanged += 1,
                Resealed::Changed(sealed) => changed.push((secret, sealed)),
                Resealed::Unreadable => unreadable.push(secret.owner),
            }
        }
        let replaced = if changed.is_empty() { 0 } else { self.replace_secrets(&changed).await? };
        self.rotation.resealed += replaced as u64;
        let is_complete = replaced == changed.len();
        if is_complete {
            self.rotation.unchanged += unchanged;
            self.rotation.unreadable.extend(unreadable);
        }
        Ok(is_complete)
    }

    async fn replace_secrets(&self, changed: &[(StoredSecret, String)]) -> Result<usize, OperationError> {
        let work = async |mut tx: WriteTransaction| {
            self.lock_current(&mut tx).await?;
            let mut replaced = 0;
            for (stored, sealed) in changed {
                replaced += usize::from(sealed_secrets::replace(tx.conn(), stored, sealed).await?);
            }
            Ok::<_, OperationError>(tx.commit(replaced).await?)
        };
        self.store.write_alone("reseal_secrets", work).await
    }

    async fn write_checkpoints(&mut self) -> Result<(), OperationError> {
        let mut after = String::new();
        loop {
            let mut read = self.store.read().await?;
            let chains = audit::list_chains_with_head(read.conn(), &after, CHAINS_PER_READ).await?;
            drop(read);
            let Some(last) = chains.last() else { return Ok(()) };
            after.clone_from(last);
            for chain in chains {
                match self.write_checkpoint(&chain).await? {
                    Ok(true) => self.rotation.chains += 1,
                    Ok(false) => self.rotation.unchanged_chains += 1,
                    Err(broken) => self.rotation.broken_chains.push((chain, broken)),
                }
            }
        }
    }

    /// Verifies a chain and writes its checkpoint. Returns false if the chain already has a checkpoint of the new key. Reads most
    /// entries before the transaction, which locks the chain for a short time only.
    async fn write_checkpoint(&self, chain: &str) -> Result<Result<bool, BrokenChain>, OperationError> {
        let keys = self.store.audit_keys();
        let mut verifier = {
            let mut read = self.store.read().await?;
            match audit::begin_checkpoint(read.conn(), keys, chain).await? {
                ChainCheckpoint::Current => return Ok(Ok(false)),
                ChainCheckpoint::Broken(broken) => return Ok(Err(broken)),
                ChainCheckpoint::Missing(verifier) => verifier,
            }
        };
        loop {
            match audit::verify_batch(self.store.read().await?.conn(), &mut verifier, &mut |_| ()).await? {
                // If the chain is broken, the transaction finds the break again, and writes the checkpoint of the entries before it.
                Ok(0) | Err(_) => break,
                Ok(_) => {}
            }
        }
        let verifier = &verifier;
        let work = async |mut tx: WriteTransaction| {
            let written = audit::write_checkpoint(tx.conn(), verifier.clone()).await?;
            // The chain is locked, so nobody appends entries. But we must not overwrite a checkpoint of a rotation to a third key.
            self.require_current(&mut tx).await?;
            Ok::<_, OperationError>(tx.commit(written.map(|()| true)).await?)
        };
        self.store.write_alone("write_audit_checkpoint", work).await
    }

    async fn remove_previous(&self, previous: &[String]) -> Result<(), OperationError> {
        let work = async |mut tx: WriteTransaction| {
            self.lock_current(&mut tx).await?;
            for fingerprint in previous {
                master_keys::remove_previous(tx.conn(), fingerprint).await?;
            }
            Ok::<_, OperationError>(tx.commit(()).await?)
        };
        self.store.write("remove_previous_master_keys", work).await
    }

    /// Locks the deployment: until the transaction ends, nobody else stores a secret or begins a rotation.
    async fn lock_current(&self, tx: &mut WriteTransaction) -> Result<(), OperationError> {
        deployment::lock(tx.conn()).await?;
        self.require_current(tx).await
    }

    /// Fails if another rotation has made another master key current.
    async fn require_current(&self, tx: &mut WriteTransaction) -> Result<(), OperationError> {
        let current = master_keys::find(tx.conn()).await?.current;
        if current == self.to { Ok(()) } else { Err(StoreError::MissingMasterKey(current).into()) }
    }
}
