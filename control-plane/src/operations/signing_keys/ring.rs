//! Changes the key ring: reads it whole, decides, and writes the differences, under one lock.

use crate::{
    domain::{
        audit::{AuditAction, Initiator, NewAuditEntry, Object},
        change::Change,
        signing_key::{Rotation, SigningKeyRing},
    },
    keyring::{GeneratedKeys, KeyringError},
    operations::{Context, OperationError},
    store::{Write, deployment, signing_keys},
};
use countersign_identity::{P256PublicKey, Timestamp};

/// Runs `decide` on the key ring in a transaction, with the current time and newly generated keys. Writes the audit entry that
/// it returns if the ring changed. Notifies sidecars if the set of trusted keys changed.
pub(in crate::operations) async fn change_ring<T>(
    context: &Context,
    (name, by): (&'static str, &Initiator),
    decide: impl Fn(&mut SigningKeyRing, Timestamp, &mut dyn Iterator<Item = P256PublicKey>) -> (T, Option<NewAuditEntry>),
) -> Result<T, OperationError> {
    let fresh = &context.keyring.generate_keys(context.rng.as_ref())?;
    let decide = &decide;
    let work = async |mut tx: Write| {
        deployment::lock(tx.conn()).await?;
        let before = signing_keys::ring(tx.conn()).await?;
        let (mut ring, now) = (before.clone(), tx.now());
        let (outcome, entry) = decide(&mut ring, now, &mut fresh.public_keys());
        if ring != before {
            write_differences(&mut tx, &before, &ring, fresh).await?;
            if let Some(entry) = entry {
                tx.audit(by, &entry).await?;
            }
        }
        Ok::<_, OperationError>(tx.commit(outcome).await?)
    };
    context.store.write(name, work).await
}

/// The audit entry of a rotation.
pub(in crate::operations) fn rotation_entry(rotation: &Rotation) -> NewAuditEntry {
    let entry =
        NewAuditEntry::for_deployment(AuditAction::SigningKeyRotated).object(Object::SigningKey(rotation.kid.clone()));
    entry.detail("signsFrom", rotation.signs_from.seconds())
}

async fn write_differences(
    tx: &mut Write,
    before: &SigningKeyRing,
    ring: &SigningKeyRing,
    fresh: &GeneratedKeys,
) -> Result<(), OperationError> {
    for key in ring.keys().iter().filter(|key| !before.keys().contains(key)) {
        if before.keys().iter().any(|old| old.kid == key.kid) {
            signing_keys::update(tx.conn(), key).await?;
        } else {
            let sealed_private = fresh.sealed_private(key.public).ok_or(KeyringError::NoKey)?;
            signing_keys::insert(tx.conn(), key, sealed_private).await?;
        }
    }
    if !ring.live().map(|key| &key.kid).eq(before.live().map(|key| &key.kid)) {
        tx.record_change(Change::Keys);
    }
    Ok(())
}
