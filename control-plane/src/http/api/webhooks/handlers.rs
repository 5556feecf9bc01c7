//! The handlers of the webhook endpoints, both for the webhooks of one service and for the webhooks of the whole Countersign
//! deployment.

use super::{
    records::{
        DeliveryPage, DeliveryRecord, DeliveryWithPayload, FinalStatus, NewSecret, NewWebhookRecord, Replayed,
        TestSent, WebhookDeleted, WebhookList, WebhookRecord,
    },
    scope::WebhookManager,
};
use crate::{
    domain::{
        page::Page,
        text::{Description, ManagedBy},
        webhook::{TargetStatus, event::EventFilter, url::TargetUrl},
    },
    http::{
        error::ApiError,
        request::{
            body::{BodyFields, typed::body},
            ids::parse_id,
            paging,
        },
        state::AppState,
    },
    operations::{self, NewWebhook, ReplaySelection, WebhookChange},
};
use axum::{Json, http::StatusCode};
use countersign_identity::{EventId, Timestamp};
use serde::Deserialize;

body! {
    /// A new webhook.
    WebhookRequest {
        /// URL to which events are sent. The host of the URL is resolved when the webhook is created, and again for every
        /// delivery.
        required "url" url: TargetUrl,
        /// Event kinds to send. Default: all kinds.
        optional "events" events: EventFilter,
        /// Free text.
        optional "description" description: Description,
        /// The name of the files in which the webhook is declared. A service has at most one webhook with this URL and this value.
        optional "managedBy" managed_by: ManagedBy,
    }
    /// Changes to a webhook. Absent fields keep their value.
    WebhookChanges {
        /// New URL. Pending deliveries are sent to the new URL too.
        optional "url" url: TargetUrl,
        /// New event kinds to send, for events after the change.
        optional "events" events: EventFilter,
        /// Free text.
        optional "description" description: Description,
        /// The new `managedBy` value.
        optional "managedBy" managed_by: ManagedBy,
        /// `paused` keeps events until the webhook is `active` again or their retention ends. `active` resumes a paused
        /// or disabled webhook.
        optional "status" status: TargetStatus,
    }
    /// The deliveries to replay.
    ReplayRequest {
        /// Earliest time of the events whose deliveries are replayed.
        required "since" since: Timestamp as TimestampSchema,
        /// Replays only deliveries with the given status. A replay since a time never affects pending deliveries.
        optional "status" status: FinalStatus,
    }
}

/// The path parameter of endpoints for one webhook.
#[derive(Deserialize)]
pub struct WebhookPath {
    webhook: String,
}

/// The path parameters of endpoints for one delivery.
#[derive(Deserialize)]
pub struct DeliveryPath {
    webhook: String,
    event: String,
}

pub async fn create(
    state: AppState,
    manager: WebhookManager,
    body: BodyFields,
) -> Result<(StatusCode, Json<NewWebhookRecord>), ApiError> {
    let WebhookRequest { url, events, description, managed_by } = body.read()?;
    let (events, description) = (events.unwrap_or_default(), description.unwrap_or_default());
    let request = NewWebhook { url, events, description, managed_by };
    let WebhookManager { scope, initiator } = manager;
    let (target, secret) = operations::create_webhook(&state.context, &initiator, scope, request).await?;
    Ok((StatusCode::CREATED, Json(NewWebhookRecord::new(&target, &secret))))
}

pub async fn list(state: AppState, manager: WebhookManager) -> Result<Json<WebhookList>, ApiError> {
    let targets = operations::list_webhooks(&state.context, manager.scope).await?;
    let now = state.context.now();
    Ok(Json(WebhookList { data: targets.iter().map(|target| WebhookRecord::new(target, now)).collect() }))
}

pub async fn read(
    state: AppState,
    manager: WebhookManager,
    path: WebhookPath,
) -> Result<Json<WebhookRecord>, ApiError> {
    let target = operations::read_webhook(&state.context, manager.scope, parse_id(&path.webhook)?).await?;
    Ok(Json(WebhookRecord::new(&target, state.context.now())))
}

pub async fn change(
    state: AppState,
    manager: WebhookManager,
    path: WebhookPath,
    body: BodyFields,
) -> Result<Json<WebhookRecord>, ApiError> {
    let WebhookChanges { url, events, description, managed_by, status } = body.read()?;
    let paused = status.map(|status| status == TargetStatus::Paused);
    let change = WebhookChange { url, events, description, managed_by, paused };
    let WebhookManager { scope, initiator } = manager;
    let target =
        operations::change_webhook(&state.context, &initiator, scope, parse_id(&path.webhook)?, &change).await?;
    Ok(Json(WebhookRecord::new(&target, state.context.now())))
}

pub async fn delete(
    state: AppState,
    manager: WebhookManager,
    path: WebhookPath,
) -> Result<Json<WebhookDeleted>, ApiError> {
    operations::delete_webhook(&state.context, &manager.initiator, manager.scope, parse_id(&path.webhook)?).await?;
    Ok(Json(WebhookDeleted { deleted: true }))
}

pub async fn rotate_secret(
    state: AppState,
    manager: WebhookManager,
    path: WebhookPath,
) -> Result<Json<NewSecret>, ApiError> {
    let (webhook, WebhookManager { scope, initiator }) = (parse_id(&path.webhook)?, manager);
    let (secret, until) = operations::rotate_webhook_secret(&state.context, &initiator, scope, webhook).await?;
    Ok(Json(NewSecret::new(&secret, until)))
}

pub async fn test(
    state: AppState,
    manager: WebhookManager,
    path: WebhookPath,
) -> Result<(StatusCode, Json<TestSent>), ApiError> {
    let (webhook, WebhookManager { scope, initiator }) = (parse_id(&path.webhook)?, manager);
    let event_id = operations::send_test_event(&state.context, &initiator, scope, webhook).await?;
    Ok((StatusCode::ACCEPTED, Json(TestSent { event_id })))
}

pub async fn list_deliveries(
    state: AppState,
    manager: WebhookManager,
    path: WebhookPath,
    page: Result<Page<EventId>, ApiError>,
    query: Option<String>,
) -> Result<Json<DeliveryPage>, ApiError> {
    let (webhook, page) = (parse_id(&path.webhook)?, page?);
    let status = paging::parsed_query_parameter(query.as_deref().unwrap_or_default(), "status")?;
    let list_page = operations::list_deliveries(&state.context, manager.scope, webhook, status, page).await?;
    Ok(Json(paging::page_response(&page, list_page, |delivery| DeliveryRecord::new(&delivery))))
}

pub async fn read_delivery(
    state: AppState,
    manager: WebhookManager,
    path: DeliveryPath,
) -> Result<Json<DeliveryWithPayload>, ApiError> {
    let (webhook, event) = (parse_id(&path.webhook)?, parse_id(&path.event)?);
    let (delivery, body) = operations::read_delivery(&state.context, manager.scope, webhook, event).await?;
    Ok(Json(DeliveryWithPayload::new(&delivery, &body)))
}

pub async fn replay_delivery(
    state: AppState,
    manager: WebhookManager,
    path: DeliveryPath,
) -> Result<(StatusCode, Json<Replayed>), ApiError> {
    let replay = ReplaySelection::One(parse_id(&path.event)?);
    replay_deliveries(state, manager, &path.webhook, replay).await
}

pub async fn replay(
    state: AppState,
    manager: WebhookManager,
    path: WebhookPath,
    body: BodyFields,
) -> Result<(StatusCode, Json<Replayed>), ApiError> {
    let ReplayRequest { since, status } = body.read()?;
    let replay = ReplaySelection::Since(since, status.map(|FinalStatus(status)| status));
    replay_deliveries(state, manager, &path.webhook, replay).await
}

async fn replay_deliveries(
    state: AppState,
    manager: WebhookManager,
    webhook: &str,
    replay: ReplaySelection,
) -> Result<(StatusCode, Json<Replayed>), ApiError> {
    let WebhookManager { scope, initiator } = manager;
    let replayed = operations::replay_deliveries(&state.context, &initiator, scope, parse_id(webhook)?, replay).await?;
    Ok((StatusCode::ACCEPTED, Json(Replayed { replayed })))
}
