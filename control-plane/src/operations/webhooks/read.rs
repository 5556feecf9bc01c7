//! Reads webhooks and their deliveries.

use crate::{
    domain::{
        page::{ListPage, Page},
        webhook::{
            WebhookScope, WebhookTarget,
            delivery::{Delivery, DeliveryStatus},
        },
    },
    operations::{Context, NotFound, OperationError},
    store::{deliveries, outbox, services, webhook_targets},
};
use countersign_identity::{EventId, WebhookId};

/// Lists the webhooks of a scope (a service, or the whole Countersign deployment), oldest first.
pub async fn list_webhooks(context: &Context, scope: WebhookScope) -> Result<Vec<WebhookTarget>, OperationError> {
    let mut read = context.store.read().await?;
    if let WebhookScope::Service(service) = scope {
        services::find_live(read.conn(), service).await?.ok_or(OperationError::NotFound(NotFound::Service))?;
    }
    Ok(webhook_targets::list(read.conn(), scope).await?)
}

/// Reads a webhook.
pub async fn read_webhook(
    context: &Context,
    scope: WebhookScope,
    webhook: WebhookId,
) -> Result<WebhookTarget, OperationError> {
    let target = webhook_targets::find(context.store.read().await?.conn(), scope, webhook).await?;
    target.ok_or(OperationError::NotFound(NotFound::Webhook))
}

/// Lists the deliveries of a webhook, newest event first.
pub async fn list_deliveries(
    context: &Context,
    scope: WebhookScope,
    webhook: WebhookId,
    status: Option<DeliveryStatus>,
    page: Page<EventId>,
) -> Result<ListPage<Delivery, EventId>, OperationError> {
    read_webhook(context, scope, webhook).await?;
    Ok(deliveries::list(context.store.read().await?.conn(), webhook, status, page).await?)
}

/// Reads a delivery with its exact body.
pub async fn read_delivery(
    context: &Context,
    scope: WebhookScope,
    webhook: WebhookId,
    event: EventId,
) -> Result<(Delivery, String), OperationError> {
    read_webhook(context, scope, webhook).await?;
    let mut read = context.store.read().await?;
    let delivery =
        deliveries::find(read.conn(), webhook, event).await?.ok_or(OperationError::NotFound(NotFound::Delivery))?;
    let body =
        outbox::find_event_body(read.conn(), event).await?.ok_or(OperationError::NotFound(NotFound::Delivery))?;
    Ok((delivery, body))
}
