//! `/services/:serviceId/webhooks` and `/webhooks`: where events are told, of one service or of the deployment.
//!
//! Both places answer alike; they differ in who is let in. So each endpoint is written once, for any place, and stands
//! twice in the description.

mod records;

use crate::{
    domain::{
        audit::Initiator,
        page::Page,
        text::Description,
        webhook::{Place, TargetStatus, event::EventFilter, url::TargetUrl},
    },
    http::{
        error::ApiError,
        openapi::{
            errors::{
                Admin, Body, Errors, Manager, NoDelivery, NoService, NoWebhook, Paging, TooManyWebhooks, WrongUrl,
            },
            schema::{self, EventInPath, ServiceInPath, WebhookInPath},
        },
        request::{
            body::{Fields, shape::body},
            caller::Presented,
            ids::{InPath, id},
            paging,
        },
        state::AppState,
    },
    operations::{self, NewWebhook, Replay, WebhookChange},
};
use axum::{
    Json,
    extract::{FromRequestParts, RawQuery, State},
    http::{StatusCode, request::Parts},
};
use countersign_identity::{ServiceId, Timestamp};
use records::{
    DeliveryPage, DeliveryRecord, DeliveryWithPayload, Ending, NewSecret, NewWebhookRecord, Replayed, TestSent,
    WebhookDeleted, WebhookList, WebhookRecord,
};
use serde::Deserialize;

body! {
    /// A webhook to be made.
    WebhookRequest {
        /// Where events are sent to. Its host is looked up now, and again for every delivery.
        required "url" url: TargetUrl,
        /// Of which kinds; of all, if nothing is said.
        optional "events" events: EventFilter,
        /// What it is for.
        optional "description" description: Description,
    }
    /// What is to be changed of a webhook; what is left out stays.
    WebhookChanges {
        /// Where events are sent to from now on, also those that are on their way.
        optional "url" url: TargetUrl,
        /// Of which kinds from now on.
        optional "events" events: EventFilter,
        /// What it is for.
        optional "description" description: Description,
        /// `paused` keeps events until it is `active` again, or until they are too old. One that was disabled is made
        /// `active` the same way.
        optional "status" status: TargetStatus,
    }
    /// Which deliveries are to be made once more.
    ReplayRequest {
        /// Those of events that happened then or later.
        required "since" since: Timestamp as Instant,
        /// Only those that ended so. What is on its way is not touched.
        optional "status" status: Ending,
    }
}

/// Whoever may manage the webhooks of a service.
pub struct AtService(Place, Initiator);

/// Whoever may manage the webhooks of the deployment.
pub struct AtDeployment(Place, Initiator);

#[derive(Deserialize)]
struct ServicePath {
    service: String,
}

/// A webhook in a path, beside what else may stand there.
#[derive(Deserialize)]
pub struct WebhookPath {
    webhook: String,
}

/// A delivery in a path.
#[derive(Deserialize)]
pub struct DeliveryPath {
    webhook: String,
    event: String,
}

impl FromRequestParts<AppState> for AtService {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let presented = Presented::from_request_parts(parts, state).await?;
        let InPath(ServicePath { service }) = InPath::from_request_parts(parts, state).await?;
        let service: ServiceId = id(&service)?;
        let by = presented.manager_of(state, service).await?;
        Ok(Self(Place::Service(service), by))
    }
}

impl FromRequestParts<AppState> for AtDeployment {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let presented = Presented::from_request_parts(parts, state).await?;
        let human = presented.admin(state).await?;
        Ok(Self(Place::Deployment, presented.author_of(Some(&human))))
    }
}

/// The endpoints of a place: its module, who is let in, and what the description says of that.
macro_rules! endpoints {
    ($module:ident, $door:ident, $base:literal, $named:literal, ($($who:ident),+), ($($parameter:ident)?), $security:tt) => {
        pub mod $module {
            #![doc = concat!("The webhooks at `", $base, "/webhooks`.")]

            use super::*;

            /// Make a webhook
            ///
            /// The answer is the only place where its secret can ever be read. At most ten for a service, and ten for the
            /// deployment. Deliveries are signed as Standard Webhooks says, and made at least once.
            #[utoipa::path(
                post, path = concat!($base, "/webhooks"), operation_id = concat!("create", $named, "Webhook"), tag = "Webhooks",
                params($($parameter)?), request_body = WebhookRequest, security $security,
                responses(
                    (status = 201, description = "The webhook", body = NewWebhookRecord),
                    Errors<($($who,)+ Body, WrongUrl, TooManyWebhooks)>,
                )
            )]
            pub async fn create(
                State(state): State<AppState>,
                $door(place, by): $door,
                body: Fields,
            ) -> Result<(StatusCode, Json<NewWebhookRecord>), ApiError> {
                let WebhookRequest { url, events, description } = body.read()?;
                let (events, description) = (events.unwrap_or_default(), description.unwrap_or_default());
                let request = NewWebhook { url, events, description };
                let (target, secret) = operations::create_webhook(&state.context, &by, place, request).await?;
                Ok((StatusCode::CREATED, Json(NewWebhookRecord::of(&target, &secret))))
            }

            /// List webhooks
            #[utoipa::path(
                get, path = concat!($base, "/webhooks"), operation_id = concat!("list", $named, "Webhooks"), tag = "Webhooks",
                params($($parameter)?), security $security,
                responses((status = 200, description = "All of them", body = WebhookList), Errors<($($who,)+)>)
            )]
            pub async fn list(State(state): State<AppState>, $door(place, _): $door) -> Result<Json<WebhookList>, ApiError> {
                let targets = operations::list_webhooks(&state.context, place).await?;
                Ok(Json(WebhookList { data: targets.iter().map(|target| WebhookRecord::of(target, state.context.now())).collect() }))
            }

            /// Read a webhook
            #[utoipa::path(
                get, path = concat!($base, "/webhooks/{webhook}"), operation_id = concat!("read", $named, "Webhook"), tag = "Webhooks",
                params($($parameter,)? WebhookInPath), security $security,
                responses((status = 200, description = "The webhook", body = WebhookRecord), Errors<($($who,)+ NoWebhook)>)
            )]
            pub async fn read(
                State(state): State<AppState>,
                $door(place, _): $door,
                InPath(path): InPath<WebhookPath>,
            ) -> Result<Json<WebhookRecord>, ApiError> {
                let target = operations::read_webhook(&state.context, place, id(&path.webhook)?).await?;
                Ok(Json(WebhookRecord::of(&target, state.context.now())))
            }

            /// Change, pause or resume a webhook
            #[utoipa::path(
                patch, path = concat!($base, "/webhooks/{webhook}"), operation_id = concat!("change", $named, "Webhook"), tag = "Webhooks",
                params($($parameter,)? WebhookInPath), request_body = WebhookChanges, security $security,
                responses(
                    (status = 200, description = "The webhook as it is now", body = WebhookRecord),
                    Errors<($($who,)+ Body, WrongUrl, NoWebhook)>,
                )
            )]
            pub async fn change(
                State(state): State<AppState>,
                $door(place, by): $door,
                InPath(path): InPath<WebhookPath>,
                body: Fields,
            ) -> Result<Json<WebhookRecord>, ApiError> {
                let WebhookChanges { url, events, description, status } = body.read()?;
                let paused = status.map(|status| status == TargetStatus::Paused);
                let change = WebhookChange { url, events, description, paused };
                let target = operations::change_webhook(&state.context, &by, place, id(&path.webhook)?, &change).await?;
                Ok(Json(WebhookRecord::of(&target, state.context.now())))
            }

            /// Delete a webhook
            ///
            /// With what is on its way to it. A delivery that is being made may still arrive.
            #[utoipa::path(
                delete, path = concat!($base, "/webhooks/{webhook}"), operation_id = concat!("delete", $named, "Webhook"), tag = "Webhooks",
                params($($parameter,)? WebhookInPath), security $security,
                responses((status = 200, description = "It is gone", body = WebhookDeleted), Errors<($($who,)+ NoWebhook)>)
            )]
            pub async fn remove(
                State(state): State<AppState>,
                $door(place, by): $door,
                InPath(path): InPath<WebhookPath>,
            ) -> Result<Json<WebhookDeleted>, ApiError> {
                operations::delete_webhook(&state.context, &by, place, id(&path.webhook)?).await?;
                Ok(Json(WebhookDeleted { deleted: true }))
            }

            /// Give a webhook a new secret
            ///
            /// The answer is the only place where it can be read. For 24 hours deliveries are signed with the secret of
            /// before too, so that a receiver can change over without losing one.
            #[utoipa::path(
                post, path = concat!($base, "/webhooks/{webhook}/rotate-secret"),
                operation_id = concat!("rotate", $named, "WebhookSecret"), tag = "Webhooks",
                params($($parameter,)? WebhookInPath), security $security,
                responses((status = 200, description = "The new secret", body = NewSecret), Errors<($($who,)+ NoWebhook)>)
            )]
            pub async fn rotate(
                State(state): State<AppState>,
                $door(place, by): $door,
                InPath(path): InPath<WebhookPath>,
            ) -> Result<Json<NewSecret>, ApiError> {
                let webhook = id(&path.webhook)?;
                let (secret, until) = operations::rotate_webhook_secret(&state.context, &by, place, webhook).await?;
                Ok(Json(NewSecret::of(&secret, until)))
            }

            /// Send a test to a webhook
            ///
            /// An event of kind `webhook.test`, once, whichever kinds it gets and whether it is active or not. Read the
            /// delivery to see what came of it.
            #[utoipa::path(
                post, path = concat!($base, "/webhooks/{webhook}/test"), operation_id = concat!("test", $named, "Webhook"), tag = "Webhooks",
                params($($parameter,)? WebhookInPath), security $security,
                responses((status = 202, description = "The test is on its way", body = TestSent), Errors<($($who,)+ NoWebhook)>)
            )]
            pub async fn test(
                State(state): State<AppState>,
                $door(place, by): $door,
                InPath(path): InPath<WebhookPath>,
            ) -> Result<(StatusCode, Json<TestSent>), ApiError> {
                let event_id = operations::test_webhook(&state.context, &by, place, id(&path.webhook)?).await?;
                Ok((StatusCode::ACCEPTED, Json(TestSent { event_id })))
            }

            /// List deliveries
            ///
            /// The latest first, as long as they are kept.
            #[utoipa::path(
                get, path = concat!($base, "/webhooks/{webhook}/deliveries"),
                operation_id = concat!("list", $named, "WebhookDeliveries"), tag = "Webhooks",
                params(
                    $($parameter,)? WebhookInPath, Page,
                    ("status" = Option<schema::DeliveryStatus>, Query, description = "Only those that stand so"),
                ),
                security $security,
                responses(
                    (status = 200, description = "A page of deliveries", body = DeliveryPage),
                    Errors<($($who,)+ NoWebhook, Paging)>,
                )
            )]
            pub async fn list_deliveries(
                State(state): State<AppState>,
                $door(place, _): $door,
                InPath(path): InPath<WebhookPath>,
                page: Result<Page, ApiError>,
                RawQuery(query): RawQuery,
            ) -> Result<Json<DeliveryPage>, ApiError> {
                let (webhook, page) = (id(&path.webhook)?, page?);
                let status = paging::field(query.as_deref().unwrap_or_default(), "status")?;
                let listed = operations::list_deliveries(&state.context, place, webhook, status, page).await?;
                Ok(Json(paging::present(page, listed, |delivery| DeliveryRecord::of(&delivery))))
            }

            /// Read a delivery
            ///
            /// With what is sent.
            #[utoipa::path(
                get, path = concat!($base, "/webhooks/{webhook}/deliveries/{event}"),
                operation_id = concat!("read", $named, "WebhookDelivery"), tag = "Webhooks",
                params($($parameter,)? WebhookInPath, EventInPath), security $security,
                responses(
                    (status = 200, description = "The delivery", body = DeliveryWithPayload),
                    Errors<($($who,)+ NoWebhook, NoDelivery)>,
                )
            )]
            pub async fn read_delivery(
                State(state): State<AppState>,
                $door(place, _): $door,
                InPath(path): InPath<DeliveryPath>,
            ) -> Result<Json<DeliveryWithPayload>, ApiError> {
                let DeliveryPath { webhook, event } = path;
                let (delivery, body) =
                    operations::read_delivery(&state.context, place, id(&webhook)?, id(&event)?).await?;
                Ok(Json(DeliveryWithPayload::of(&delivery, &body)))
            }

            /// Deliver once more
            ///
            /// With all its tries, the first at once, under the same id. One that is on its way is tried at once.
            #[utoipa::path(
                post, path = concat!($base, "/webhooks/{webhook}/deliveries/{event}/replay"),
                operation_id = concat!("replay", $named, "WebhookDelivery"), tag = "Webhooks",
                params($($parameter,)? WebhookInPath, EventInPath), security $security,
                responses(
                    (status = 202, description = "It is on its way", body = Replayed),
                    Errors<($($who,)+ NoWebhook, NoDelivery)>,
                )
            )]
            pub async fn replay_one(
                State(state): State<AppState>,
                $door(place, by): $door,
                InPath(path): InPath<DeliveryPath>,
            ) -> Result<(StatusCode, Json<Replayed>), ApiError> {
                let DeliveryPath { webhook, event } = path;
                let replay = Replay::One(id(&event)?);
                let replayed = operations::replay_deliveries(&state.context, &by, place, id(&webhook)?, replay).await?;
                Ok((StatusCode::ACCEPTED, Json(Replayed { replayed })))
            }

            /// Deliver many once more
            ///
            /// Everything that ended, of events since an instant: for a receiver that lost what it had.
            #[utoipa::path(
                post, path = concat!($base, "/webhooks/{webhook}/replay"),
                operation_id = concat!("replay", $named, "WebhookDeliveries"), tag = "Webhooks",
                params($($parameter,)? WebhookInPath), request_body = ReplayRequest, security $security,
                responses(
                    (status = 202, description = "They are on their way", body = Replayed),
                    Errors<($($who,)+ Body, NoWebhook)>,
                )
            )]
            pub async fn replay(
                State(state): State<AppState>,
                $door(place, by): $door,
                InPath(path): InPath<WebhookPath>,
                body: Fields,
            ) -> Result<(StatusCode, Json<Replayed>), ApiError> {
                let ReplayRequest { since, status } = body.read()?;
                let (webhook, replay) = (id(&path.webhook)?, Replay::Since(since, status.map(|Ending(status)| status)));
                let replayed = operations::replay_deliveries(&state.context, &by, place, webhook, replay).await?;
                Ok((StatusCode::ACCEPTED, Json(Replayed { replayed })))
            }
        }
    };
}

endpoints! {
    service, AtService, "/services/{service}", "Service", (Manager, NoService), (ServiceInPath),
    (("serviceKey" = []), ("humanToken" = []))
}

endpoints! { deployment, AtDeployment, "", "Deployment", (Admin), (), (("humanToken" = [])) }
