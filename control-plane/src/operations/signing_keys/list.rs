//! List the signing keys.

use crate::{
    domain::{
        page::{Listed, Page},
        signing_key::{KeyRing, SigningKey},
    },
    operations::{Context, OperationError},
    store::signing_keys,
};

/// All keys that ever were, the one published last first.
pub async fn list_signing_keys(context: &Context, page: Page) -> Result<Listed<SigningKey>, OperationError> {
    Ok(signing_keys::list(context.store.read().await?.conn(), page).await?)
}

/// The keys whose tokens are believed now.
pub async fn published_keys(context: &Context) -> Result<KeyRing, OperationError> {
    Ok(signing_keys::ring(context.store.read().await?.conn()).await?)
}
