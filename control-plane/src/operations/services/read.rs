//! Reads services, their API keys and their resource URIs.

use crate::{
    domain::{
        caller::Human,
        page::{ListPage, Page},
        resource_uri::{ResourceUri, ResourceUris},
        service::{Service, ServiceKey},
    },
    operations::{Context, OperationError, find::find_service},
    store::{resource_uris, services},
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

/// Finds the service that a client names by its id or by one of its resource URIs. Does not check whether a service has the id.
pub async fn find_service_of_resource(context: &Context, text: &str) -> Result<Option<ServiceId>, OperationError> {
    if let Ok(id) = text.parse() {
        return Ok(Some(id));
    }
    let Ok(uri) = ResourceUri::parse(text) else { return Ok(None) };
    Ok(resource_uris::find_service(context.store.read().await?.conn(), &uri).await?)
}

pub async fn read_resource_uris(context: &Context, service: ServiceId) -> Result<ResourceUris, OperationError> {
    Ok(find_service(context.store.read().await?.conn(), service).await?.resource_uris)
}
