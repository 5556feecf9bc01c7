//! See to it that there are signing keys, and that none stays for longer than it must.

use super::{
    Context, Denied,
    signing_keys::{change_ring, rotated},
};
use crate::{
    domain::{audit::Author, signing_key::SigningKeyRing},
    store::signing_keys,
};

/// Makes what is missing, removes keys whose last token is dead, rotates by age, and makes sure that the key that
/// signs can be opened. Gives the keys as they are then.
pub async fn tend_signing_keys(context: &Context) -> Result<SigningKeyRing, Denied> {
    let rules = &context.rules.keys;
    let found = signing_keys::ring(context.store.read().await?.conn()).await?;
    let mut tended = found.clone();
    tended.maintain(rules, context.now(), context.keyring.generate_keys(context.rng.as_ref())?.public_keys());
    if tended != found {
        change_ring(context, ("tend_signing_keys", &Author::SYSTEM), |ring, now, fresh| {
            let rotation = ring.maintain(rules, now, fresh);
            ((), rotation.as_ref().map(rotated))
        })
        .await?;
    }
    let mut read = context.store.read().await?;
    context.keyring.current_signer(read.conn(), context.now()).await?;
    Ok(signing_keys::ring(read.conn()).await?)
}
