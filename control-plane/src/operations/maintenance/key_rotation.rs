//! Creates, rotates and removes signing keys when they are due.

use crate::{
    domain::{audit::Initiator, signing_key::SigningKeyRing},
    operations::{
        Context, OperationError,
        signing_keys::ring::{change_ring, rotation_entry},
    },
    store::signing_keys,
};

/// Creates missing keys, removes keys whose last token has expired, rotates by age, and checks that the private key of the
/// current signing key can be decrypted. Returns the key ring (all signing keys whose tokens are accepted).
pub async fn rotate_signing_keys_if_due(context: &Context) -> Result<SigningKeyRing, OperationError> {
    let policy = &context.config.key_rotation;
    let current = signing_keys::load_ring(context.store.read().await?.conn()).await?;
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
