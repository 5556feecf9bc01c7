//! Take a signing key out at once, for good: the answer to one that somebody else may have.

use super::ring::change_ring;
use crate::{
    domain::audit::{AuditAction, Initiator, NewAuditEntry, Object},
    operations::{Context, NotFound, OperationError},
    store::signing_keys,
};
use countersign_identity::Kid;

/// Revokes: every token under the key is dead, whoever judges it, and the next key signs if this one did. False if
/// no token under it was believed any more.
pub async fn revoke_signing_key(context: &Context, by: &Initiator, kid: &Kid) -> Result<bool, OperationError> {
    if !signing_keys::exists(context.store.read().await?.conn(), kid).await? {
        return Err(OperationError::NotFound(NotFound::SigningKey));
    }
    change_ring(context, ("revoke_signing_key", by), |ring, now, fresh| {
        let entry =
            NewAuditEntry::for_deployment(AuditAction::SigningKeyRevoked).object(Object::SigningKey(kid.clone()));
        (ring.revoke(kid, &context.rules.keys, now, fresh), Some(entry))
    })
    .await
}
