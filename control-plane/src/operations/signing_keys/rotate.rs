//! Let the next signing key sign.

use super::ring::{change_ring, rotated};
use crate::{
    domain::{audit::Initiator, signing_key::Rotation},
    keyring::KeyringError,
    operations::{Context, OperationError},
};

/// Rotates: at once if the next key was published long enough ago for whoever still answers to know it, else as soon
/// as it was. While a rotation is to come, that is the answer. Says also whether the key signs already.
pub async fn rotate_signing_key(context: &Context, by: &Initiator) -> Result<(Rotation, bool), OperationError> {
    let rotation = change_ring(context, ("rotate_signing_key", by), |ring, now, fresh| {
        let rotation = ring.rotate(&context.rules.keys, now, fresh);
        let entry = rotation.as_ref().map(rotated);
        (rotation.map(|rotation| (rotation.signs_from <= now, rotation)), entry)
    });
    let (signs, rotation) = rotation.await?.ok_or(KeyringError::NoKey)?;
    Ok((rotation, signs))
}
