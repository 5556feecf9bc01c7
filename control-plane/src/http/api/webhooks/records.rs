//! Webhooks and deliveries as they are answered, and as they are asked for.

use crate::{
    domain::{
        credential::expose,
        webhook::{
            Target, TargetStatus,
            delivery::{AttemptFailure, Delivery, DeliveryState, DeliveryStatus},
            event::EventFilter,
            url::TargetUrl,
        },
    },
    http::{
        error::Instant,
        openapi::schema,
        request::{body::FromField, paging::Paged},
    },
};
use countersign_identity::{EventId, ServiceId, Timestamp, WebhookId};
use secrecy::SecretString;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

/// A page of a listing.
pub type DeliveryPage = Paged<DeliveryRecord>;

/// All webhooks of a place.
#[derive(Serialize, ToSchema)]
pub struct WebhookList {
    /// The oldest first.
    pub data: Vec<WebhookRecord>,
}

/// A webhook: where events are told.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WebhookRecord {
    #[schema(value_type = schema::WebhookId)]
    webhook_id: WebhookId,
    /// The service whose events it gets; null if it gets those of all.
    #[schema(value_type = Option<schema::ServiceId>, required)]
    service_id: Option<ServiceId>,
    #[schema(value_type = schema::WebhookUrl)]
    url: String,
    #[schema(value_type = schema::EventFilter)]
    events: Vec<&'static str>,
    #[schema(value_type = schema::Description)]
    description: String,
    /// `active`, `paused` (as asked for) or `disabled` (nothing can be delivered). What is not active keeps its events.
    #[schema(example = "active")]
    status: &'static str,
    /// Why it is disabled: `gone` (it answered 410) or `failing` (for five days); null if it is not.
    #[schema(required, example = "failing")]
    disabled_reason: Option<&'static str>,
    /// Since when nothing could be delivered; null if it could.
    #[schema(value_type = Option<schema::Instant>, required)]
    failing_since: Option<Instant>,
    /// Until when the secret of before signs too; null if there is none that does.
    #[schema(value_type = Option<schema::Instant>, required)]
    previous_secret_expires_at: Option<Instant>,
    /// When it was made.
    #[schema(value_type = schema::Instant)]
    created_at: Instant,
    /// When somebody changed it last.
    #[schema(value_type = schema::Instant)]
    updated_at: Instant,
}

/// A webhook with its secret, which is told this once.
#[derive(Serialize, ToSchema)]
pub struct NewWebhookRecord {
    #[serde(flatten)]
    webhook: WebhookRecord,
    #[schema(value_type = schema::WebhookSecret)]
    secret: String,
}

/// A new secret, which is told this once.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct NewSecret {
    #[schema(value_type = schema::WebhookSecret)]
    secret: String,
    /// Until when the secret of before signs too.
    #[schema(value_type = schema::Instant)]
    previous_secret_expires_at: Instant,
}

/// A webhook is gone.
#[derive(Serialize, ToSchema)]
pub struct WebhookDeleted {
    /// Always true.
    #[schema(example = true)]
    pub deleted: bool,
}

/// A test is on its way.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TestSent {
    #[schema(value_type = schema::EventId)]
    pub event_id: EventId,
}

/// Deliveries are on their way once more.
#[derive(Serialize, ToSchema)]
pub struct Replayed {
    /// How many.
    #[schema(minimum = 0, example = 1)]
    pub replayed: u64,
}

/// An event on its way to a webhook, or at its end.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeliveryRecord {
    #[schema(value_type = schema::EventId)]
    event_id: EventId,
    /// What kind of event it is.
    #[schema(example = "agent.role_revoked")]
    event: &'static str,
    /// When it happened.
    #[schema(value_type = schema::Instant)]
    occurred_at: Instant,
    #[schema(value_type = schema::DeliveryStatus)]
    status: &'static str,
    /// How often it was tried, since it was last asked for.
    #[schema(minimum = 0, example = 1)]
    attempts: u32,
    /// When it is tried next, if the webhook is active; null if it is not on its way.
    #[schema(value_type = Option<schema::Instant>, required)]
    next_attempt_at: Option<Instant>,
    /// When it was last tried.
    #[schema(value_type = Option<schema::Instant>, required)]
    last_attempt_at: Option<Instant>,
    /// The HTTP status of the last answer.
    #[schema(required, minimum = 100, maximum = 999, example = 200)]
    response_status: Option<u16>,
    /// The beginning of its body: at most 1024 bytes.
    #[schema(required, example = "ok")]
    response_body: Option<String>,
    /// Why the last try failed: `status`, `gone`, `redirect`, `timeout`, `dns`, `address_refused`, `tls` or `connection`.
    #[schema(required, example = "timeout")]
    failure: Option<&'static str>,
}

/// A delivery, with what is sent.
#[derive(Serialize, ToSchema)]
pub struct DeliveryWithPayload {
    #[serde(flatten)]
    delivery: DeliveryRecord,
    #[schema(value_type = schema::EventPayload)]
    payload: Value,
}

impl WebhookRecord {
    pub fn of(target: &Target, now: Timestamp) -> Self {
        Self {
            webhook_id: target.id,
            service_id: target.place.service(),
            url: target.url.to_string(),
            events: target.events.names(),
            description: target.description.to_string(),
            status: target.status().as_str(),
            disabled_reason: target.disabled.map(|(_, reason)| reason.as_str()),
            failing_since: target.failing_since.map(Instant),
            previous_secret_expires_at: target.previous_until.filter(|until| now < *until).map(Instant),
            created_at: Instant(target.created_at),
            updated_at: Instant(target.updated_at),
        }
    }
}

impl NewWebhookRecord {
    pub fn of(target: &Target, secret: &SecretString) -> Self {
        Self { webhook: WebhookRecord::of(target, target.created_at), secret: expose(secret).to_owned() }
    }
}

impl NewSecret {
    pub fn of(secret: &SecretString, until: Timestamp) -> Self {
        Self { secret: expose(secret).to_owned(), previous_secret_expires_at: Instant(until) }
    }
}

impl DeliveryRecord {
    pub fn of(delivery: &Delivery) -> Self {
        let Delivery { event, kind, occurred_at, state, attempts, last } = delivery;
        let due = if let DeliveryState::Pending(at) = state { Some(*at) } else { None };
        let answer = last.as_ref().and_then(|last| last.answer.as_ref());
        Self {
            event_id: *event,
            event: kind.as_str(),
            occurred_at: Instant(*occurred_at),
            status: state.status().as_str(),
            attempts: *attempts,
            next_attempt_at: due.map(Instant),
            last_attempt_at: last.as_ref().map(|last| Instant(last.at)),
            response_status: answer.map(|answer| answer.status),
            response_body: answer.map(|answer| answer.excerpt.clone()),
            failure: last.as_ref().and_then(|last| last.failure).map(AttemptFailure::as_str),
        }
    }
}

impl DeliveryWithPayload {
    pub fn of(delivery: &Delivery, body: &str) -> Self {
        let payload = serde_json::from_str(body).unwrap_or_default();
        Self { delivery: DeliveryRecord::of(delivery), payload }
    }
}

impl FromField for TargetUrl {
    type Word = schema::WebhookUrl;

    fn from_field(value: Value) -> Result<Self, String> {
        Self::parse(&String::from_field(value)?).map_err(|error| error.to_string())
    }
}

impl FromField for EventFilter {
    type Word = schema::EventFilter;

    fn from_field(value: Value) -> Result<Self, String> {
        let names = value.as_array().and_then(|names| names.iter().map(Value::as_str).collect::<Option<Vec<_>>>());
        Self::parse(names.unwrap_or_default()).map_err(|error| error.to_string())
    }
}

impl FromField for TargetStatus {
    type Word = schema::WebhookStatus;

    fn from_field(value: Value) -> Result<Self, String> {
        // Nobody disables a webhook but its receiver.
        let asked = [Self::Active, Self::Paused].into_iter();
        let mut found = asked.filter(|status| value == status.as_str());
        found.next().ok_or_else(|| "must be `active` or `paused`".to_owned())
    }
}

/// How a delivery ended.
pub struct Ending(pub DeliveryStatus);

impl FromField for Ending {
    type Word = schema::Ending;

    fn from_field(value: Value) -> Result<Self, String> {
        let ended = value.as_str().and_then(DeliveryStatus::parse).filter(|status| *status != DeliveryStatus::Pending);
        ended.map(Self).ok_or_else(|| "must be `delivered` or `dead`".to_owned())
    }
}

impl FromField for DeliveryStatus {
    type Word = schema::DeliveryStatus;

    fn from_field(value: Value) -> Result<Self, String> {
        let found = value.as_str().and_then(Self::parse);
        found.ok_or_else(|| "must be `pending`, `delivered` or `dead`".to_owned())
    }
}
