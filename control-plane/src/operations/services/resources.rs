//! Finds services by their resource URIs.

use crate::{
    domain::resource_uri::{ResourceUri, ResourceUris},
    operations::{Context, NotFound, OperationError},
    store::{resource_uris, services},
};
use countersign_identity::ServiceId;

/// Finds the service that a client names: by its id, which may be that of no service, or by one of its resource URIs.
pub async fn find_service_of_resource(context: &Context, text: &str) -> Result<Option<ServiceId>, OperationError> {
    if let Ok(id) = text.parse() {
        return Ok(Some(id));
    }
    let Ok(uri) = ResourceUri::parse(text) else { return Ok(None) };
    Ok(resource_uris::find_service(context.store.read().await?.conn(), &uri).await?)
}

/// Reads the resource URIs of a service.
pub async fn read_resource_uris(context: &Context, service: ServiceId) -> Result<ResourceUris, OperationError> {
    let service = services::find_live(context.store.read().await?.conn(), service).await?;
    Ok(service.ok_or(OperationError::NotFound(NotFound::Service))?.resource_uris)
}
