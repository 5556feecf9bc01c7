//! Read which targets there are, and what was delivered to them.

use crate::{
    domain::{
        page::{ListPage, Page},
        webhook::{
            Place, Target,
            delivery::{Delivery, DeliveryStatus},
        },
    },
    operations::{Context, NotFound, OperationError},
    store::{deliveries, outbox, services, webhook_targets},
};
use countersign_identity::{EventId, WebhookId};

/// The targets of a place, oldest first.
pub async fn list_webhooks(context: &Context, place: Place) -> Result<Vec<Target>, OperationError> {
    let mut read = context.store.read().await?;
    if let Place::Service(service) = place {
        services::find(read.conn(), service).await?.ok_or(OperationError::NotFound(NotFound::Service))?;
    }
    Ok(webhook_targets::list(read.conn(), place).await?)
}

/// A target.
pub async fn read_webhook(context: &Context, place: Place, webhook: WebhookId) -> Result<Target, OperationError> {
    let found = webhook_targets::find(context.store.read().await?.conn(), place, webhook).await?;
    found.ok_or(OperationError::NotFound(NotFound::Webhook))
}

/// What was or is delivered to a target, newest first.
pub async fn list_deliveries(
    context: &Context,
    place: Place,
    webhook: WebhookId,
    status: Option<DeliveryStatus>,
    page: Page,
) -> Result<ListPage<Delivery>, OperationError> {
    read_webhook(context, place, webhook).await?;
    Ok(deliveries::list(context.store.read().await?.conn(), webhook, status, page).await?)
}

/// A delivery, with the body that is sent.
pub async fn read_delivery(
    context: &Context,
    place: Place,
    webhook: WebhookId,
    event: EventId,
) -> Result<(Delivery, String), OperationError> {
    read_webhook(context, place, webhook).await?;
    let mut read = context.store.read().await?;
    let found =
        deliveries::find(read.conn(), webhook, event).await?.ok_or(OperationError::NotFound(NotFound::Delivery))?;
    let body = outbox::body(read.conn(), event).await?.ok_or(OperationError::NotFound(NotFound::Delivery))?;
    Ok((found, body))
}
