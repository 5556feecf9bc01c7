//! Lists signing keys.

use crate::{
    domain::{
        page::{ListPage, Page},
        signing_key::{SigningKey, SigningKeyRing},
    },
    operations::{Context, OperationError, memory::SHARED_READ_TIMEOUT},
    store::{Conn, signing_keys},
};

pub use crate::store::signing_keys::SigningKeyPosition;

/// Lists all signing keys, including removed keys, newest first.
pub async fn list_signing_keys(
    context: &Context,
    page: &Page<SigningKeyPosition>,
) -> Result<ListPage<SigningKey, SigningKeyPosition>, OperationError> {
    Ok(signing_keys::list(context.store.read().await?.conn(), page).await?)
}

/// Returns the signing keys that verify tokens now, which are published as a JWK set.
pub async fn published_keys(context: &Context) -> Result<SigningKeyRing, OperationError> {
    let read = async |conn: &mut Conn| signing_keys::load_ring(conn).await;
    Ok(context.published_keys.run(context.store.read_one_for(SHARED_READ_TIMEOUT, read)).await?)
}
