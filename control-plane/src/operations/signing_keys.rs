//! Lists, rotates and revokes signing keys. The key ring has all keys whose tokens are accepted (the live keys), and, until it is
//! written, keys that this change has removed. Every change reads the whole ring and writes the differences under one lock.

use super::{Context, NotFound, OperationError};
use crate::{
    domain::{
        audit::{AuditAction, AuditedObject, Initiator, NewAuditEntry},
        change::{Change, Changed},
        page::{ListPage, Page},
        signing_key::{Rotation, SigningKey, SigningKeyRing},
    },
    keyring::{GeneratedKeys, KeyringError},
    store::{Conn, SHARED_READ_TIMEOUT, WriteTransaction, deployment, signing_keys},
};
use countersign_identity::{Kid, P256PublicKey, Timestamp};

pub use crate::store::signing_keys::SigningKeyPosition;

/// Lists all signing keys, including removed and revoked keys, newest first.
pub async fn list_signing_keys(
    context: &Context,
    page: &Page<SigningKeyPosition>,
) -> Result<ListPage<SigningKey, SigningKeyPosition>, OperationError> {
    Ok(signing_keys::list(context.store.read().await?.conn(), page).await?)
}

/// Returns the signing keys that verify tokens now. They are published as a JWK set. Concurrent calls share one read.
pub async fn published_keys(context: &Context) -> Result<SigningKeyRing, OperationError> {
    let read = async |conn: &mut Conn| signing_keys::load_ring(conn).await;
    Ok(context.published_keys_read.run(context.store.read_one_for(SHARED_READ_TIMEOUT, read)).await?)
}

/// A rotation, and whether its key signs now.
pub struct RequestedRotation {
    pub rotation: Rotation,
    pub signs_now: bool,
}

/// Schedules a rotation: the next key signs as soon as it has been published for `publication_lead`, or now if it has been already.
/// By then, every sidecar that still accepts tokens has the key. If a rotation is already scheduled, returns this rotation.
pub async fn rotate_signing_key(
    context: &Context,
    initiator: &Initiator,
) -> Result<Changed<RequestedRotation>, OperationError> {
    let changed = change_ring(context, "rotate_signing_key", initiator, |ring, now, new_keys| {
        let rotation = ring.rotate(&context.config.key_rotation, now, new_keys);
        let entry = rotation.as_ref().map(rotation_entry);
        (rotation.map(|rotation| RequestedRotation { signs_now: rotation.signs_from <= now, rotation }), entry)
    });
    let Changed { value, revision } = changed.await?;
    Ok(Changed { value: value.ok_or(KeyringError::NoKey)?, revision })
}

/// Revokes a signing key. All tokens that it signed become invalid. If the revoked key was the current one, the next key signs at
/// once. Returns false if the key was already removed or revoked.
pub async fn revoke_signing_key(
    context: &Context,
    initiator: &Initiator,
    kid: &Kid,
) -> Result<Changed<bool>, OperationError> {
    if !signing_keys::exists(context.store.read().await?.conn(), kid).await? {
        return Err(NotFound::SigningKey.into());
    }
    change_ring(context, "revoke_signing_key", initiator, |ring, now, new_keys| {
        let entry = NewAuditEntry::for_deployment(AuditAction::SigningKeyRevoked)
            .object(AuditedObject::SigningKey(kid.clone()));
        (ring.revoke(kid, &context.config.key_rotation, now, new_keys), Some(entry))
    })
    .await
}

/// Maintains the key ring: creates missing keys, removes keys whose last token has expired, and rotates an old signing key. Then
/// checks that we can decrypt the private key of the key that signs now. Returns the ring.
pub async fn rotate_signing_keys_if_due(context: &Context) -> Result<SigningKeyRing, OperationError> {
    let policy = &context.config.key_rotation;
    let current = signing_keys::load_ring(context.store.read().await?.conn()).await?;
    // Most calls change nothing. We find that out on a copy of the ring, without a transaction.
    let mut maintained = current.clone();
    maintained.maintain(policy, context.now(), context.keyring.generate_keys(context.rng.as_ref())?.public_keys());
    if maintained != current {
        change_ring(context, "rotate_signing_keys_if_due", &Initiator::SYSTEM, |ring, now, new_keys| {
            let rotation = ring.maintain(policy, now, new_keys);
            ((), rotation.as_ref().map(rotation_entry))
        })
        .await?;
    }
    let mut read = context.store.read().await?;
    context.keyring.current_signer(read.conn(), context.now()).await?;
    Ok(signing_keys::load_ring(read.conn()).await?)
}

/// Applies `change` to the key ring in a transaction. `change` gets the ring, the time, and new keys that it may add. If the ring
/// has changed, writes the audit entry that `change` returns. If the set of live keys has changed, sidecars receive it.
async fn change_ring<T>(
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

fn rotation_entry(rotation: &Rotation) -> NewAuditEntry {
    let entry = NewAuditEntry::for_deployment(AuditAction::SigningKeyRotated)
        .object(AuditedObject::SigningKey(rotation.kid.clone()));
    entry.with_detail("signsFrom", rotation.signs_from.seconds())
}

/// Updates and inserts the keys that differ. If the set of live keys has changed, tells all sidecars.
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
