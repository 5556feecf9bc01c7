//! How the ring of signing keys is changed: read whole, decided on, written whole, one change at a time.

use super::{Context, Denied};
use crate::{
    domain::{
        audit::{Act, Author, Entry, Object},
        change::Change,
        signing_key::{Rotation, SigningKeyRing},
    },
    keyring::{GeneratedKeys, KeyringError},
    store::{Write, deployment, signing_keys},
};
use countersign_identity::{AgentKey, Timestamp};

/// Changes the ring in a transaction by what `decide` does to it, given the instant and keys that nobody has seen. If
/// that is an act, it is recorded, unless nothing changed. Sidecars learn of it if other keys are believed from then on.
pub(super) async fn change_ring<T>(
    context: &Context,
    (name, by): (&'static str, &Author),
    decide: impl Fn(&mut SigningKeyRing, Timestamp, &mut dyn Iterator<Item = AgentKey>) -> (T, Option<Entry>),
) -> Result<T, Denied> {
    let fresh = &context.keyring.generate_keys(context.rng.as_ref())?;
    let decide = &decide;
    let work = async |mut tx: Write| {
        deployment::lock(tx.conn()).await?;
        let before = signing_keys::ring(tx.conn()).await?;
        let (mut ring, now) = (before.clone(), tx.now());
        let (outcome, act) = decide(&mut ring, now, &mut fresh.public_keys());
        if ring != before {
            keep(&mut tx, &before, &ring, fresh).await?;
            if let Some(act) = act {
                tx.record(by, &act).await?;
            }
        }
        Ok::<_, Denied>(tx.commit(outcome).await?)
    };
    context.store.write(name, work).await
}

/// The act of a rotation.
pub(super) fn rotated(rotation: &Rotation) -> Entry {
    let act = Entry::of_deployment(Act::SigningKeyRotated).with(Object::SigningKey(rotation.kid.clone()));
    act.saying("signsFrom", rotation.signs_from.seconds())
}

async fn keep(
    tx: &mut Write,
    before: &SigningKeyRing,
    ring: &SigningKeyRing,
    fresh: &GeneratedKeys,
) -> Result<(), Denied> {
    for key in ring.keys().iter().filter(|key| !before.keys().contains(key)) {
        if before.keys().iter().any(|old| old.kid == key.kid) {
            signing_keys::update(tx.conn(), key).await?;
        } else {
            let sealed_private = fresh.sealed_private(key.public).ok_or(KeyringError::NoKey)?;
            signing_keys::insert(tx.conn(), key, sealed_private).await?;
        }
    }
    if !ring.live().map(|key| &key.kid).eq(before.live().map(|key| &key.kid)) {
        tx.changed(Change::Keys);
    }
    Ok(())
}
