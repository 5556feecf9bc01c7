//! Take a signing key out at once, for good: the answer to one that somebody else may have.

use super::ring::change_ring;
use crate::{
    domain::audit::{Act, Author, Entry, Object},
    operations::{Context, Denied, Missing},
    store::signing_keys,
};
use countersign_identity::Kid;

/// Revokes: every token under the key is dead, whoever judges it, and the next key signs if this one did. False if
/// no token under it was believed any more.
pub async fn revoke_signing_key(context: &Context, by: &Author, kid: &Kid) -> Result<bool, Denied> {
    if !signing_keys::existed(context.store.read().await?.conn(), kid).await? {
        return Err(Denied::Missing(Missing::SigningKey));
    }
    change_ring(context, ("revoke_signing_key", by), |ring, now, fresh| {
        let act = Entry::of_deployment(Act::SigningKeyRevoked).with(Object::SigningKey(kid.clone()));
        (ring.revoke(kid, &context.rules.keys, now, fresh), Some(act))
    })
    .await
}
