//! What a request about webhooks contains: the caller who manages them, the ids in the path, and the body.

use crate::{
    domain::{
        audit::Initiator,
        service::ServiceOrDeployment,
        webhook::{TargetStatus, delivery::DeliveryStatus, event::EventFilter, url::TargetUrl},
    },
    http::{api::prelude::*, request::body::FromField},
};
use axum::{
    extract::{FromRequestParts, MatchedPath},
    http::request::Parts,
};
use countersign_identity::Timestamp;
use serde::Deserialize;
use serde_json::Value;

/// An authorized caller, and the scope whose webhooks it may manage.
pub struct WebhookManager {
    /// The service in the path, or without one the whole Countersign deployment.
    pub scope: ServiceOrDeployment,
    /// The caller, as the initiator in audit entries.
    pub initiator: Initiator,
}

#[derive(Deserialize)]
struct ServicePath {
    service: String,
}

impl FromRequestParts<AppState> for WebhookManager {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let call = Call::from_request_parts(parts, state).await?;
        let route = parts.extensions.get::<MatchedPath>();
        if !route.is_some_and(|route| route.as_str().starts_with("/services/{service}/")) {
            let initiator = call.require_admin().await?;
            return Ok(Self { scope: ServiceOrDeployment::Deployment, initiator });
        }
        let PathParams(ServicePath { service }) = PathParams::from_request_parts(parts, state).await?;
        let (service, initiator) = call.require_manager_of(&service).await?;
        Ok(Self { scope: ServiceOrDeployment::Service(service), initiator })
    }
}

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
        /// The label of the declaration files that contain the webhook. A service has at most one webhook with this URL and label.
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
        required "since" since: Timestamp as Rfc3339,
        /// Replays only deliveries with the given status. A replay since a time never affects pending deliveries.
        optional "status" status: FinalStatus,
    }
}

/// The path parameter of endpoints for one webhook.
#[derive(Deserialize)]
pub struct WebhookPath {
    pub webhook: String,
}

/// The path parameters of endpoints for one delivery.
#[derive(Deserialize)]
pub struct DeliveryPath {
    pub webhook: String,
    pub event: String,
}

impl FromField for TargetUrl {
    type Schema = schema::WebhookUrlSchema;

    fn from_field(value: Value) -> Result<Self, String> {
        Self::parse(&String::from_field(value)?).map_err(|error| error.to_string())
    }
}

impl FromField for EventFilter {
    type Schema = schema::EventFilterSchema;

    fn from_field(value: Value) -> Result<Self, String> {
        // A value that is no array of strings gets the same error as an empty array.
        let names = value.as_array().and_then(|names| names.iter().map(Value::as_str).collect::<Option<Vec<_>>>());
        Self::parse(names.unwrap_or_default()).map_err(|error| error.to_string())
    }
}

impl FromField for TargetStatus {
    type Schema = schema::WebhookStatusSchema;

    fn from_field(value: Value) -> Result<Self, String> {
        // Requests cannot set `disabled`: only the dispatcher disables a webhook.
        let mut allowed = [Self::Active, Self::Paused].into_iter();
        allowed.find(|status| value == status.as_str()).ok_or_else(|| "must be `active` or `paused`".to_owned())
    }
}

/// The status of a delivery that is not pending.
pub struct FinalStatus(pub DeliveryStatus);

impl FromField for FinalStatus {
    type Schema = schema::FinalDeliveryStatusSchema;

    fn from_field(value: Value) -> Result<Self, String> {
        let status = value.as_str().and_then(DeliveryStatus::parse).filter(|status| *status != DeliveryStatus::Pending);
        status.map(Self).ok_or_else(|| "must be `delivered` or `dead`".to_owned())
    }
}

impl FromField for DeliveryStatus {
    type Schema = schema::DeliveryStatusSchema;

    fn from_field(value: Value) -> Result<Self, String> {
        let status = value.as_str().and_then(Self::parse);
        status.ok_or_else(|| "must be `pending`, `delivered` or `dead`".to_owned())
    }
}
