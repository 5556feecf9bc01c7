//! The JSON of webhooks and deliveries in responses.

use crate::{
    domain::webhook::{
        WebhookTarget,
        delivery::{AttemptFailure, Delivery, DeliveryState},
    },
    http::api::prelude::*,
};
use countersign_identity::{EventId, ServiceId, Timestamp, WebhookId};
use serde_json::Value;

pub type DeliveryPage = PageResponse<DeliveryRecord>;

/// All webhooks of a service, or of the deployment.
#[derive(Serialize, ToSchema)]
pub struct WebhookList {
    /// Oldest first.
    pub data: Vec<WebhookRecord>,
}

/// A webhook: a URL that receives events.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(example = json!({
    "webhookId": "wh_01jyd3rq8yfd19yr0w5mz4ypkb",
    "serviceId": "svc_01jyd3rq8yfd19yr0w5mz4ypkb",
    "url": "https://billing.example.org/hooks/countersign",
    "events": ["agent.role_revoked"],
    "description": "Reads invoices",
    "managedBy": null,
    "status": "active",
    "disabledReason": null,
    "failingSince": null,
    "previousSecretExpiresAt": null,
    "createdAt": "2027-03-14T15:09:26.535897Z",
    "updatedAt": "2027-03-14T15:09:26.535897Z",
}))]
pub struct WebhookRecord {
    #[schema(value_type = schema::WebhookIdSchema)]
    webhook_id: WebhookId,
    /// The service whose events the webhook receives; null if the webhook receives the events of all services.
    #[schema(value_type = Option<schema::ServiceIdSchema>, required)]
    service_id: Option<ServiceId>,
    #[schema(value_type = schema::WebhookUrlSchema)]
    url: String,
    #[schema(value_type = schema::EventFilterSchema)]
    events: Vec<&'static str>,
    description: Description,
    /// The label of the declaration files that contain the webhook; null if no file does.
    #[schema(required)]
    managed_by: Option<ManagedBy>,
    /// `active`, `paused` (by a manager) or `disabled` (deliveries failed). Events are stored while the webhook is not active.
    #[schema(example = "active")]
    status: &'static str,
    /// `gone` (the receiver responded with 410) or `failing` (all attempts failed for five days); null if the webhook is not
    /// disabled.
    #[schema(required, example = "failing")]
    disabled_reason: Option<&'static str>,
    /// Time since which all attempts have failed; null if the last attempt succeeded.
    #[schema(required)]
    failing_since: Option<Rfc3339>,
    /// Time until which deliveries are also signed with the previous secret; null if they are not.
    #[schema(required)]
    previous_secret_expires_at: Option<Rfc3339>,
    /// Creation time.
    created_at: Rfc3339,
    /// Time of the last change by a manager.
    updated_at: Rfc3339,
}

/// A webhook with its secret, which is shown only once.
#[derive(Serialize, ToSchema)]
pub struct NewWebhookRecord {
    #[serde(flatten)]
    pub webhook: WebhookRecord,
    #[schema(value_type = schema::WebhookSecretSchema)]
    pub secret: String,
}

/// A new secret, which is shown only once.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct NewSecret {
    #[schema(value_type = schema::WebhookSecretSchema)]
    pub secret: String,
    /// Time until which deliveries are also signed with the previous secret.
    pub previous_secret_expires_at: Rfc3339,
}

/// The webhook is deleted.
#[derive(Serialize, ToSchema)]
pub struct WebhookDeleted {
    /// Always true.
    #[schema(example = true)]
    pub deleted: bool,
}

/// The test event is queued.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TestSent {
    #[schema(value_type = schema::EventIdSchema)]
    pub event_id: EventId,
}

/// Deliveries are pending again.
#[derive(Serialize, ToSchema)]
pub struct Replayed {
    /// Number of replayed deliveries.
    #[schema(minimum = 0, example = 1)]
    pub replayed: u64,
}

/// The delivery of one event to one webhook.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(example = json!({
    "eventId": "evt_01jyd3rq8yfd19yr0w5mz4ypkb",
    "event": "agent.role_revoked",
    "occurredAt": "2027-03-14T15:09:26.535897Z",
    "status": "delivered",
    "attempts": 1,
    "nextAttemptAt": null,
    "lastAttemptAt": "2027-03-14T15:09:27.128312Z",
    "responseStatus": 200,
    "responseBody": "ok",
    "failure": null,
}))]
pub struct DeliveryRecord {
    #[schema(value_type = schema::EventIdSchema)]
    event_id: EventId,
    /// Event kind.
    #[schema(example = "agent.role_revoked")]
    event: String,
    /// Time of the event.
    occurred_at: Rfc3339,
    #[schema(value_type = schema::DeliveryStatusSchema)]
    status: &'static str,
    /// Attempts since the delivery was created or last replayed.
    #[schema(minimum = 0, example = 1)]
    attempts: u32,
    /// Time of the next attempt, if the webhook is active then; null if the delivery is not pending.
    #[schema(required)]
    next_attempt_at: Option<Rfc3339>,
    /// Time of the last attempt.
    #[schema(required)]
    last_attempt_at: Option<Rfc3339>,
    /// HTTP status of the last response.
    #[schema(required, minimum = 100, maximum = 999, example = 200)]
    response_status: Option<u16>,
    /// Start of the body of the last response, at most 1024 bytes.
    #[schema(required, example = "ok")]
    response_body: Option<String>,
    /// Why the last attempt failed: `status`, `gone`, `redirect`, `timeout`, `dns`, `address_refused`, `tls` or `connection`.
    #[schema(required, example = "timeout")]
    failure: Option<&'static str>,
}

/// A delivery with its payload.
#[derive(Serialize, ToSchema)]
pub struct DeliveryWithPayload {
    #[serde(flatten)]
    pub delivery: DeliveryRecord,
    #[schema(value_type = schema::EventPayloadSchema)]
    pub payload: Value,
}

impl WebhookRecord {
    pub fn new(target: &WebhookTarget, now: Timestamp) -> Self {
        Self {
            webhook_id: target.id,
            service_id: target.scope.service(),
            url: target.url.to_string(),
            events: target.events.names(),
            description: target.description.clone(),
            managed_by: target.managed_by.clone(),
            status: target.status().as_str(),
            disabled_reason: target.disabled.map(|(_, reason)| reason.as_str()),
            failing_since: target.failing_since.map(Rfc3339),
            previous_secret_expires_at: target.previous_secret_until.filter(|until| now < *until).map(Rfc3339),
            created_at: Rfc3339(target.created_at),
            updated_at: Rfc3339(target.updated_at),
        }
    }
}

impl DeliveryRecord {
    pub fn new(delivery: &Delivery) -> Self {
        let Delivery { event, kind, occurred_at, state, attempts, last_attempt } = delivery;
        let next_attempt_at = if let DeliveryState::Pending(at) = state { Some(*at) } else { None };
        let last_attempt = last_attempt.as_ref();
        let response = last_attempt.and_then(|attempt| attempt.response.as_ref());
        Self {
            event_id: *event,
            event: kind.clone(),
            occurred_at: Rfc3339(*occurred_at),
            status: state.status().as_str(),
            attempts: *attempts,
            next_attempt_at: next_attempt_at.map(Rfc3339),
            last_attempt_at: last_attempt.map(|attempt| Rfc3339(attempt.at)),
            response_status: response.map(|response| response.status),
            response_body: response.map(|response| response.body.clone()),
            failure: last_attempt.and_then(|attempt| attempt.failure).map(AttemptFailure::as_str),
        }
    }
}
