//! List services, and the API keys of one.

use crate::{
    domain::{
        caller::Human,
        page::{Listed, Page},
        service::{Service, ServiceKey},
    },
    operations::{Context, OperationError},
    store::services,
};
use countersign_identity::ServiceId;

/// The services that a person owns, or all of them for an administrator; newest first.
pub async fn list_services(context: &Context, human: &Human, page: Page) -> Result<Listed<Service>, OperationError> {
    let owner = (!human.admin).then_some(&human.owner);
    Ok(services::list(context.store.read().await?.conn(), owner, page).await?)
}

/// The API keys of a service, also those that were revoked; newest first.
pub async fn list_service_keys(
    context: &Context,
    service: ServiceId,
    page: Page,
) -> Result<Listed<ServiceKey>, OperationError> {
    Ok(services::list_keys(context.store.read().await?.conn(), service, page).await?)
}
