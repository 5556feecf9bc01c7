//! The endpoints under `/services/:serviceId/webhooks` and `/webhooks`.
//!
//! The two scopes (the webhooks of one service, and the webhooks of the whole Countersign deployment) have the same endpoints
//! and differ in who is authorized. An endpoint is one function in [`handlers`]. The macro `endpoints` declares the route and
//! the OpenAPI description of every endpoint once for each scope.

mod handlers;
mod records;
mod scope;

use crate::{
    domain::page::Page,
    http::{
        error::ApiError,
        openapi::{
            errors::{
                AdminAuth, AlreadyManaged, DeliveryNotFound, Errors, InvalidBody, InvalidPaging, InvalidWebhookUrl,
                ManagerAuth, ServiceNotFound, WebhookLimit, WebhookNotFound,
            },
            schema::{self, EventPathParam, ServicePathParam, WebhookPathParam},
        },
        request::{body::BodyFields, ids::PathParams, paging::PageParameters},
        state::AppState,
    },
};
use axum::{
    Json,
    extract::{RawQuery, State},
    http::StatusCode,
};
use countersign_identity::EventId;
use handlers::{DeliveryPath, ReplayRequest, WebhookChanges, WebhookPath, WebhookRequest};
use records::{
    DeliveryPage, DeliveryWithPayload, NewSecret, NewWebhookRecord, Replayed, TestSent, WebhookDeleted, WebhookList,
    WebhookRecord,
};
use scope::{DeploymentManager, ServiceManager};

type ApiResult<T> = Result<T, ApiError>;

/// A response with a status other than 200.
type WithStatus<T> = (StatusCode, Json<T>);

/// Declares the webhook endpoints of one scope. The macro parameters are the name of the module, the extractor that authorizes
/// the caller, the path prefix, the infix of operation ids, the authorization errors, the path parameters and the security
/// schemes.
macro_rules! endpoints {
    ($module:ident, $manager:ident, $base:literal, $infix:literal, ($($error:ident),+), ($($parameter:ident)?), $security:tt) => {
        pub mod $module {
            #![doc = concat!("The endpoints under `", $base, "/webhooks`.")]

            use super::*;

            /// Create a webhook
            ///
            /// The response contains the signing secret, which cannot be read later. A service can have at most ten webhooks,
            /// and at most ten webhooks can receive the events of all services. Each event is delivered at least once, with a
            /// signature as defined by Standard Webhooks.
            #[utoipa::path(
                post, path = concat!($base, "/webhooks"), operation_id = concat!("create", $infix, "Webhook"), tag = "Webhooks",
                params($($parameter)?), request_body = WebhookRequest, security $security,
                responses(
                    (status = 201, description = "The webhook", body = NewWebhookRecord),
                    Errors<($($error,)+ InvalidBody, InvalidWebhookUrl, WebhookLimit, AlreadyManaged)>,
                )
            )]
            pub async fn create(
                State(state): State<AppState>,
                $manager(manager): $manager,
                body: BodyFields,
            ) -> ApiResult<WithStatus<NewWebhookRecord>> {
                handlers::create(state, manager, body).await
            }

            /// List webhooks
            #[utoipa::path(
                get, path = concat!($base, "/webhooks"), operation_id = concat!("list", $infix, "Webhooks"), tag = "Webhooks",
                params($($parameter)?), security $security,
                responses((status = 200, description = "All webhooks", body = WebhookList), Errors<($($error,)+)>)
            )]
            pub async fn list(
                State(state): State<AppState>,
                $manager(manager): $manager,
            ) -> ApiResult<Json<WebhookList>> {
                handlers::list(state, manager).await
            }

            /// Read a webhook
            #[utoipa::path(
                get, path = concat!($base, "/webhooks/{webhook}"), operation_id = concat!("read", $infix, "Webhook"), tag = "Webhooks",
                params($($parameter,)? WebhookPathParam), security $security,
                responses((status = 200, description = "The webhook", body = WebhookRecord), Errors<($($error,)+ WebhookNotFound)>)
            )]
            pub async fn read(
                State(state): State<AppState>,
                $manager(manager): $manager,
                PathParams(path): PathParams<WebhookPath>,
            ) -> ApiResult<Json<WebhookRecord>> {
                handlers::read(state, manager, path).await
            }

            /// Change, pause or resume a webhook
            #[utoipa::path(
                patch, path = concat!($base, "/webhooks/{webhook}"), operation_id = concat!("change", $infix, "Webhook"), tag = "Webhooks",
                params($($parameter,)? WebhookPathParam), request_body = WebhookChanges, security $security,
                responses(
                    (status = 200, description = "The changed webhook", body = WebhookRecord),
                    Errors<($($error,)+ InvalidBody, InvalidWebhookUrl, WebhookNotFound, AlreadyManaged)>,
                )
            )]
            pub async fn change(
                State(state): State<AppState>,
                $manager(manager): $manager,
                PathParams(path): PathParams<WebhookPath>,
                body: BodyFields,
            ) -> ApiResult<Json<WebhookRecord>> {
                handlers::change(state, manager, path, body).await
            }

            /// Delete a webhook
            ///
            /// Also deletes the deliveries of the webhook. A delivery attempt in progress may still reach the receiver.
            #[utoipa::path(
                delete, path = concat!($base, "/webhooks/{webhook}"), operation_id = concat!("delete", $infix, "Webhook"), tag = "Webhooks",
                params($($parameter,)? WebhookPathParam), security $security,
                responses((status = 200, description = "Deleted", body = WebhookDeleted), Errors<($($error,)+ WebhookNotFound)>)
            )]
            pub async fn remove(
                State(state): State<AppState>,
                $manager(manager): $manager,
                PathParams(path): PathParams<WebhookPath>,
            ) -> ApiResult<Json<WebhookDeleted>> {
                handlers::delete(state, manager, path).await
            }

            /// Rotate the secret of a webhook
            ///
            /// The response contains the new secret, which cannot be read later. For 24 hours, deliveries are also signed
            /// with the previous secret, so that the receiver can switch without losing a delivery.
            #[utoipa::path(
                post, path = concat!($base, "/webhooks/{webhook}/rotate-secret"),
                operation_id = concat!("rotate", $infix, "WebhookSecret"), tag = "Webhooks",
                params($($parameter,)? WebhookPathParam), security $security,
                responses((status = 200, description = "The new secret", body = NewSecret), Errors<($($error,)+ WebhookNotFound)>)
            )]
            pub async fn rotate(
                State(state): State<AppState>,
                $manager(manager): $manager,
                PathParams(path): PathParams<WebhookPath>,
            ) -> ApiResult<Json<NewSecret>> {
                handlers::rotate_secret(state, manager, path).await
            }

            /// Send a test event to a webhook
            ///
            /// Sends an event of kind `webhook.test` once, regardless of the event filter and the status of the webhook. The
            /// delivery of the test event contains the outcome.
            #[utoipa::path(
                post, path = concat!($base, "/webhooks/{webhook}/test"), operation_id = concat!("test", $infix, "Webhook"), tag = "Webhooks",
                params($($parameter,)? WebhookPathParam), security $security,
                responses((status = 202, description = "The test event is queued", body = TestSent), Errors<($($error,)+ WebhookNotFound)>)
            )]
            pub async fn test(
                State(state): State<AppState>,
                $manager(manager): $manager,
                PathParams(path): PathParams<WebhookPath>,
            ) -> ApiResult<WithStatus<TestSent>> {
                handlers::test(state, manager, path).await
            }

            /// List deliveries
            ///
            /// Newest event first. Deliveries are deleted when the retention of their events ends.
            #[utoipa::path(
                get, path = concat!($base, "/webhooks/{webhook}/deliveries"),
                operation_id = concat!("list", $infix, "WebhookDeliveries"), tag = "Webhooks",
                params(
                    $($parameter,)? WebhookPathParam, PageParameters,
                    ("status" = Option<schema::DeliveryStatusSchema>, Query, description = "Only deliveries with this status"),
                ),
                security $security,
                responses(
                    (status = 200, description = "A page of deliveries", body = DeliveryPage),
                    Errors<($($error,)+ WebhookNotFound, InvalidPaging)>,
                )
            )]
            pub async fn list_deliveries(
                State(state): State<AppState>,
                $manager(manager): $manager,
                PathParams(path): PathParams<WebhookPath>,
                page: ApiResult<Page<EventId>>,
                RawQuery(query): RawQuery,
            ) -> ApiResult<Json<DeliveryPage>> {
                handlers::list_deliveries(state, manager, path, page, query).await
            }

            /// Read a delivery
            ///
            /// Includes the payload that is sent.
            #[utoipa::path(
                get, path = concat!($base, "/webhooks/{webhook}/deliveries/{event}"),
                operation_id = concat!("read", $infix, "WebhookDelivery"), tag = "Webhooks",
                params($($parameter,)? WebhookPathParam, EventPathParam), security $security,
                responses(
                    (status = 200, description = "The delivery", body = DeliveryWithPayload),
                    Errors<($($error,)+ WebhookNotFound, DeliveryNotFound)>,
                )
            )]
            pub async fn read_delivery(
                State(state): State<AppState>,
                $manager(manager): $manager,
                PathParams(path): PathParams<DeliveryPath>,
            ) -> ApiResult<Json<DeliveryWithPayload>> {
                handlers::read_delivery(state, manager, path).await
            }

            /// Replay a delivery
            ///
            /// Starts a new series of attempts with the same event id. The first attempt starts immediately. If the delivery is
            /// pending, its next attempt starts immediately.
            #[utoipa::path(
                post, path = concat!($base, "/webhooks/{webhook}/deliveries/{event}/replay"),
                operation_id = concat!("replay", $infix, "WebhookDelivery"), tag = "Webhooks",
                params($($parameter,)? WebhookPathParam, EventPathParam), security $security,
                responses(
                    (status = 202, description = "The delivery is pending", body = Replayed),
                    Errors<($($error,)+ WebhookNotFound, DeliveryNotFound)>,
                )
            )]
            pub async fn replay_one(
                State(state): State<AppState>,
                $manager(manager): $manager,
                PathParams(path): PathParams<DeliveryPath>,
            ) -> ApiResult<WithStatus<Replayed>> {
                handlers::replay_delivery(state, manager, path).await
            }

            /// Replay deliveries since a time
            ///
            /// Replays all delivered and dead deliveries of events since the time `since`, for a receiver that lost data.
            #[utoipa::path(
                post, path = concat!($base, "/webhooks/{webhook}/replay"),
                operation_id = concat!("replay", $infix, "WebhookDeliveries"), tag = "Webhooks",
                params($($parameter,)? WebhookPathParam), request_body = ReplayRequest, security $security,
                responses(
                    (status = 202, description = "The deliveries are pending", body = Replayed),
                    Errors<($($error,)+ InvalidBody, WebhookNotFound)>,
                )
            )]
            pub async fn replay(
                State(state): State<AppState>,
                $manager(manager): $manager,
                PathParams(path): PathParams<WebhookPath>,
                body: BodyFields,
            ) -> ApiResult<WithStatus<Replayed>> {
                handlers::replay(state, manager, path, body).await
            }
        }
    };
}

endpoints! {
    service, ServiceManager, "/services/{service}", "Service", (ManagerAuth, ServiceNotFound), (ServicePathParam),
    (("serviceKey" = []), ("humanToken" = []))
}

endpoints! { deployment, DeploymentManager, "", "Deployment", (AdminAuth), (), (("humanToken" = [])) }
