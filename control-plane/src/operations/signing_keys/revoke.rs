//! Revokes a signing key immediately, for a key that may be compromised.

use super::ring::change_ring;
use crate::{
    domain::audit::{AuditAction, Initiator, NewAuditEntry, Object},
    operations::{Context, NotFound, OperationError},
    store::signing_keys,
};
use countersign_identity::Kid;

/// Revokes a signing key. All tokens that it signed become invalid, and if it was the current key, the next key signs at once.
/// Returns false if the key was already removed or revoked.
pub async fn revoke_signing_key(context: &Context, by: &Initiator, kid: &Kid) -> Result<bool, OperationError> {
    if !signing_keys::exists(context.store.read().await?.conn(), kid).await? {
        return Err(OperationError::NotFound(NotFound::SigningKey));
    }
    change_ring(context, ("revoke_signing_key", by), |ring, now, fresh| {
        let entry =
            NewAuditEntry::for_deployment(AuditAction::SigningKeyRevoked).object(Object::SigningKey(kid.clone()));
        (ring.revoke(kid, &context.config.keys, now, fresh), Some(entry))
    })
    .await
}
