//! Changes the key ring: reads the whole ring, applies a change, and writes the differences, under one lock.

use crate::{
    domain::{
        audit::{AuditAction, AuditedObject, Initiator, NewAuditEntry},
        change::{Change, Changed},
        signing_key::{Rotation, SigningKeyRing},
    },
    keyring::{GeneratedKeys, KeyringError},
    operations::{Context, OperationError},
    store::{WriteTransaction, deployment, signing_keys},
};
use countersign_identity::{P256PublicKey, Timestamp};

/// Applies `change` to the key ring in a transaction, with the current time and newly generated keys. If the ring changed,
/// writes the audit entry that `change` returned. If the set of trusted keys changed, notifies sidecars.
pub(in crate::operations) async fn change_ring<T>(
    context: &Context,
    name: &'static str,
    initiator: &Initiator,
    change: impl Fn(&mut SigningKeyRing, Timestamp, &mut dyn Iterator<Item = P256PublicKey>) -> (T, Option<NewAuditEntry>),
) -> Result<Changed<T>, OperationError> {
    let new_keys = &context.keyring.generate_keys(context.rng.as_ref())?;
    let change = &change;
    let work = async |mut tx: WriteTransaction| {
        deployment::lock(tx.conn()).await?;
        let before = signing_keys::load_ring(tx.conn()).await?;
        let (mut ring, now) = (before.clone(), tx.now());
        let (outcome, entry) = change(&mut ring, now, &mut new_keys.public_keys());
        if ring != before {
            write_differences(&mut tx, &before, &ring, new_keys).await?;
            if let Some(entry) = entry {
                tx.audit(initiator, &entry).await?;
            }
        }
        Ok::<_, OperationError>(tx.commit_change(outcome).await?)
    };
    context.store.write(name, work).await
}

/// The audit entry of a rotation of the signing key.
pub(in crate::operations) fn rotation_entry(rotation: &Rotation) -> NewAuditEntry {
    let entry = NewAuditEntry::for_deployment(AuditAction::SigningKeyRotated)
        .object(AuditedObject::SigningKey(rotation.kid.clone()));
    entry.with_detail("signsFrom", rotation.signs_from.seconds())
}

async fn write_differences(
    tx: &mut WriteTransaction,
    before: &SigningKeyRing,
    ring: &SigningKeyRing,
    new_keys: &GeneratedKeys,
) -> Result<(), OperationError> {
    for key in ring.keys().iter().filter(|key| !before.keys().contains(key)) {
        if before.keys().iter().any(|old| old.kid == key.kid) {
            signing_keys::update(tx.conn(), key).await?;
        } else {
            let sealed_private = new_keys.sealed_private(key.public).ok_or(KeyringError::NoKey)?;
            let sealed_private = sealed_private.for_current_master_key(tx.conn()).await?;
            signing_keys::insert(tx.conn(), key, sealed_private).await?;
        }
    }
    if !ring.live_keys().map(|key| &key.kid).eq(before.live_keys().map(|key| &key.kid)) {
        tx.record_change(Change::Keys);
    }
    Ok(())
}
