//! Rotates the signing key.

use super::ring::{change_ring, rotation_entry};
use crate::{
    domain::{audit::Initiator, signing_key::Rotation},
    keyring::KeyringError,
    operations::{Context, OperationError},
};

/// Schedules the next key as the signing key: at once if it was published at least `max_staleness` ago, so that every sidecar
/// that still answers has it; otherwise as soon as it was. If a rotation is already scheduled, returns that one. Also returns
/// whether the key signs already.
pub async fn rotate_signing_key(context: &Context, by: &Initiator) -> Result<(Rotation, bool), OperationError> {
    let rotation = change_ring(context, ("rotate_signing_key", by), |ring, now, fresh| {
        let rotation = ring.rotate(&context.config.keys, now, fresh);
        let entry = rotation.as_ref().map(rotation_entry);
        (rotation.map(|rotation| (rotation.signs_from <= now, rotation)), entry)
    });
    let (signs, rotation) = rotation.await?.ok_or(KeyringError::NoKey)?;
    Ok((rotation, signs))
}
