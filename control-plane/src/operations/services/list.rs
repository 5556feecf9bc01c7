//! Lists services and their API keys.

use crate::{
    domain::{
        caller::Human,
        page::{ListPage, Page},
        service::{Service, ServiceKey},
    },
    operations::{Context, OperationError},
    store::services,
};
use countersign_identity::{ApiKeyId, ServiceId};

/// Lists the services that the user owns, or all services for an administrator, newest first.
pub async fn list_services(
    context: &Context,
    human: &Human,
    page: Page<ServiceId>,
) -> Result<ListPage<Service, ServiceId>, OperationError> {
    let owner = (!human.is_admin).then_some(&human.identity);
    Ok(services::list(context.store.read().await?.conn(), owner, page).await?)
}

/// Lists the API keys of a service, including revoked ones, newest first.
pub async fn list_service_keys(
    context: &Context,
    service: ServiceId,
    page: Page<ApiKeyId>,
) -> Result<ListPage<ServiceKey, ApiKeyId>, OperationError> {
    Ok(services::list_keys(context.store.read().await?.conn(), service, page).await?)
}
