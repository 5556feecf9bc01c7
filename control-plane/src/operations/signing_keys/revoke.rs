//! Revokes a signing key that may be compromised.

use super::ring::change_ring;
use crate::{
    domain::{
        audit::{AuditAction, AuditedObject, Initiator, NewAuditEntry},
        change::Changed,
    },
    operations::{Context, NotFound, OperationError},
    store::signing_keys,
};
use countersign_identity::Kid;

/// Revokes a signing key. All tokens that the revoked key signed become invalid. If the revoked key was the current key, the
/// next key signs at once. Returns false if the key was already removed or revoked.
pub async fn revoke_signing_key(
    context: &Context,
    initiator: &Initiator,
    kid: &Kid,
) -> Result<Changed<bool>, OperationError> {
    if !signing_keys::exists(context.store.read().await?.conn(), kid).await? {
        return Err(OperationError::NotFound(NotFound::SigningKey));
    }
    change_ring(context, "revoke_signing_key", initiator, |ring, now, new_keys| {
        let entry = NewAuditEntry::for_deployment(AuditAction::SigningKeyRevoked)
            .object(AuditedObject::SigningKey(kid.clone()));
        (ring.revoke(kid, &context.config.key_rotation, now, new_keys), Some(entry))
    })
    .await
}
