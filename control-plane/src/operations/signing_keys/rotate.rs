//! Rotates the signing key.

use super::ring::{change_ring, rotation_entry};
use crate::{
    domain::{audit::Initiator, change::Changed, signing_key::Rotation},
    keyring::KeyringError,
    operations::{Context, OperationError},
};

/// Schedules the next key as the signing key. The next key signs at once if it was published at least `max_staleness` ago,
/// because every sidecar that accepts tokens then has the key; otherwise the next key signs as soon as `max_staleness` has
/// passed. If a rotation is already scheduled, returns that rotation. The second returned value is whether the new key signs
/// already.
pub async fn rotate_signing_key(
    context: &Context,
    initiator: &Initiator,
) -> Result<Changed<(Rotation, bool)>, OperationError> {
    let rotation = change_ring(context, "rotate_signing_key", initiator, |ring, now, new_keys| {
        let rotation = ring.rotate(&context.config.key_rotation, now, new_keys);
        let entry = rotation.as_ref().map(rotation_entry);
        (rotation.map(|rotation| (rotation.signs_from <= now, rotation)), entry)
    });
    let Changed { value, revision } = rotation.await?;
    let (signs_now, rotation) = value.ok_or(KeyringError::NoKey)?;
    Ok(Changed { value: (rotation, signs_now), revision })
}
