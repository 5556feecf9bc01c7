//! See to it that there are signing keys, and that none stays for longer than it must.

use crate::{
    domain::{audit::Initiator, signing_key::KeyRing},
    operations::{
        Context, OperationError,
        signing_keys::ring::{change_ring, rotated},
    },
    store::signing_keys,
};

/// Makes what is missing, removes keys whose last token is dead, rotates by age, and makes sure that the key that
/// signs can be opened. Gives the keys as they are then.
pub async fn rotate_signing_keys_if_due(context: &Context) -> Result<KeyRing, OperationError> {
    let rules = &context.rules.keys;
    let found = signing_keys::ring(context.store.read().await?.conn()).await?;
    let mut tended = found.clone();
    tended.tend(rules, context.now(), context.keyring.make_fresh(context.rng.as_ref())?.publics());
    if tended != found {
        change_ring(context, ("rotate_signing_keys_if_due", &Initiator::SYSTEM), |ring, now, fresh| {
            let rotation = ring.tend(rules, now, fresh);
            ((), rotation.as_ref().map(rotated))
        })
        .await?;
    }
    let mut read = context.store.read().await?;
    context.keyring.signer(read.conn(), context.now()).await?;
    Ok(signing_keys::ring(read.conn()).await?)
}
