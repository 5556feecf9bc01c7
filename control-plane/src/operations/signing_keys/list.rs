//! Lists signing keys.

use crate::{
    domain::{
        page::{ListPage, Page},
        signing_key::{SigningKey, SigningKeyRing},
    },
    operations::{Context, OperationError},
    store::signing_keys,
};

/// Lists all keys, including removed ones, latest publication first.
pub async fn list_signing_keys(context: &Context, page: Page) -> Result<ListPage<SigningKey>, OperationError> {
    Ok(signing_keys::list(context.store.read().await?.conn(), page).await?)
}

/// The keys that verify tokens now, as published in the JWK set.
pub async fn published_keys(context: &Context) -> Result<SigningKeyRing, OperationError> {
    Ok(signing_keys::ring(context.store.read().await?.conn()).await?)
}
