//! The endpoints under `/services/{service}/webhooks` and `/webhooks`.
//!
//! A scope is one service, or the whole Countersign deployment. Both scopes have the same endpoints and differ in who is
//! authorized. The macro `endpoints` declares each endpoint for both.

mod records;
mod requests;

use crate::{
    domain::{credential::expose, webhook::TargetStatus},
    http::api::prelude::*,
    operations::{NewWebhook, ReplaySelection, WebhookChange},
};
use countersign_identity::EventId;
use records::{
    DeliveryPage, DeliveryRecord, DeliveryWithPayload, NewSecret, NewWebhookRecord, Replayed, TestSent, WebhookDeleted,
    WebhookList, WebhookRecord,
};
use requests::{DeliveryPath, FinalStatus, ReplayRequest, WebhookChanges, WebhookManager, WebhookPath, WebhookRequest};
use utoipa_axum::{router::OpenApiRouter, routes};

type ApiResult<T> = Result<T, ApiError>;

/// A response with a status other than 200.
type WithStatus<T> = (StatusCode, Json<T>);

/// Declares the webhook endpoints of one scope in a module. Operation ids contain `operation_infix`, and `scope_errors` are the
/// errors that a request can get before its webhook is looked up: the caller is not authorized, or the scope does not exist.
macro_rules! endpoints {
    (
        module: $module:ident,
        prefix: $base:literal,
        operation_infix: $infix:literal,
        scope_errors: ($($error:ident),+),
        path_parameters: ($($parameter:ident)?),
        security: $security:tt $(,)?
    ) => {
        pub mod $module {
            #![doc = concat!("The endpoints under `", $base, "/webhooks`.")]

            use super::*;

            /// The routes of this scope. Handlers on one line share a path.
            pub fn routes() -> OpenApiRouter<AppState> {
                OpenApiRouter::new()
                    .routes(routes!(create, list))
                    .routes(routes!(read, change, remove))
                    .routes(routes!(rotate))
                    .routes(routes!(test))
                    .routes(routes!(replay))
                    .routes(routes!(list_deliveries))
                    .routes(routes!(read_delivery))
                    .routes(routes!(replay_one))
            }

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
                manager: WebhookManager,
                body: BodyFields,
            ) -> ApiResult<WithStatus<NewWebhookRecord>> {
                let WebhookRequest { url, events, description, managed_by } = body.read()?;
                let (events, description) = (events.unwrap_or_default(), description.unwrap_or_default());
                let request = NewWebhook { url, events, description, managed_by };
                let WebhookManager { scope, initiator } = manager;
                let (target, secret) = operations::create_webhook(&state.context, &initiator, scope, request).await?;
                let webhook = WebhookRecord::new(&target, target.created_at);
                Ok((StatusCode::CREATED, Json(NewWebhookRecord { webhook, secret: expose(&secret).to_owned() })))
            }

            /// List webhooks
            #[utoipa::path(
                get, path = concat!($base, "/webhooks"), operation_id = concat!("list", $infix, "Webhooks"), tag = "Webhooks",
                params($($parameter)?), security $security,
                responses((status = 200, description = "All webhooks", body = WebhookList), Errors<($($error,)+)>)
            )]
            pub async fn list(
                State(state): State<AppState>,
                manager: WebhookManager,
            ) -> ApiResult<Json<WebhookList>> {
                let targets = operations::list_webhooks(&state.context, manager.scope).await?;
                let now = state.context.now();
                Ok(Json(WebhookList { data: targets.iter().map(|target| WebhookRecord::new(target, now)).collect() }))
            }

            /// Read a webhook
            #[utoipa::path(
                get, path = concat!($base, "/webhooks/{webhook}"), operation_id = concat!("read", $infix, "Webhook"), tag = "Webhooks",
                params($($parameter,)? WebhookPathParam), security $security,
                responses((status = 200, description = "The webhook", body = WebhookRecord), Errors<($($error,)+ WebhookNotFound)>)
            )]
            pub async fn read(
                State(state): State<AppState>,
                manager: WebhookManager,
                PathParams(WebhookPath { webhook }): PathParams<WebhookPath>,
            ) -> ApiResult<Json<WebhookRecord>> {
                let target = operations::read_webhook(&state.context, manager.scope, parse_id(&webhook)?).await?;
                Ok(Json(WebhookRecord::new(&target, state.context.now())))
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
                manager: WebhookManager,
                PathParams(WebhookPath { webhook }): PathParams<WebhookPath>,
                body: BodyFields,
            ) -> ApiResult<Json<WebhookRecord>> {
                let WebhookChanges { url, events, description, managed_by, status } = body.read()?;
                let paused = status.map(|status| status == TargetStatus::Paused);
                let change = WebhookChange { url, events, description, managed_by, paused };
                let (webhook, WebhookManager { scope, initiator }) = (parse_id(&webhook)?, manager);
                let target = operations::change_webhook(&state.context, &initiator, scope, webhook, &change).await?;
                Ok(Json(WebhookRecord::new(&target, state.context.now())))
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
                manager: WebhookManager,
                PathParams(WebhookPath { webhook }): PathParams<WebhookPath>,
            ) -> ApiResult<Json<WebhookDeleted>> {
                let (webhook, WebhookManager { scope, initiator }) = (parse_id(&webhook)?, manager);
                operations::delete_webhook(&state.context, &initiator, scope, webhook).await?;
                Ok(Json(WebhookDeleted { deleted: true }))
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
                manager: WebhookManager,
                PathParams(WebhookPath { webhook }): PathParams<WebhookPath>,
            ) -> ApiResult<Json<NewSecret>> {
                let (webhook, WebhookManager { scope, initiator }) = (parse_id(&webhook)?, manager);
                let (secret, until) = operations::rotate_webhook_secret(&state.context, &initiator, scope, webhook).await?;
                let secret = expose(&secret).to_owned();
                Ok(Json(NewSecret { secret, previous_secret_expires_at: Rfc3339(until) }))
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
                manager: WebhookManager,
                PathParams(WebhookPath { webhook }): PathParams<WebhookPath>,
            ) -> ApiResult<WithStatus<TestSent>> {
                let (webhook, WebhookManager { scope, initiator }) = (parse_id(&webhook)?, manager);
                let event_id = operations::send_test_event(&state.context, &initiator, scope, webhook).await?;
                Ok((StatusCode::ACCEPTED, Json(TestSent { event_id })))
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
                manager: WebhookManager,
                PathParams(WebhookPath { webhook }): PathParams<WebhookPath>,
                page: ApiResult<Page<EventId>>,
                query: QueryParams,
            ) -> ApiResult<Json<DeliveryPage>> {
                let (webhook, page) = (parse_id(&webhook)?, page?);
                let status = query.field("status")?;
                let deliveries = operations::list_deliveries(&state.context, manager.scope, webhook, status, page).await?;
                Ok(Json(page_response(&page, deliveries, |delivery| DeliveryRecord::new(&delivery))))
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
                manager: WebhookManager,
                PathParams(DeliveryPath { webhook, event }): PathParams<DeliveryPath>,
            ) -> ApiResult<Json<DeliveryWithPayload>> {
                let (webhook, event) = (parse_id(&webhook)?, parse_id(&event)?);
                let (delivery, body) = operations::read_delivery(&state.context, manager.scope, webhook, event).await?;
                let payload = serde_json::from_str(&body).unwrap_or_default();
                Ok(Json(DeliveryWithPayload { delivery: DeliveryRecord::new(&delivery), payload }))
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
                manager: WebhookManager,
                PathParams(DeliveryPath { webhook, event }): PathParams<DeliveryPath>,
            ) -> ApiResult<WithStatus<Replayed>> {
                let selection = ReplaySelection::One(parse_id(&event)?);
                replay_deliveries(&state, manager, &webhook, selection).await
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
                manager: WebhookManager,
                PathParams(WebhookPath { webhook }): PathParams<WebhookPath>,
                body: BodyFields,
            ) -> ApiResult<WithStatus<Replayed>> {
                let ReplayRequest { since, status } = body.read()?;
                let selection = ReplaySelection::Since(since, status.map(|FinalStatus(status)| status));
                replay_deliveries(&state, manager, &webhook, selection).await
            }
        }
    };
}

async fn replay_deliveries(
    state: &AppState,
    manager: WebhookManager,
    webhook: &str,
    selection: ReplaySelection,
) -> ApiResult<WithStatus<Replayed>> {
    let (webhook, WebhookManager { scope, initiator }) = (parse_id(webhook)?, manager);
    let replayed = operations::replay_deliveries(&state.context, &initiator, scope, webhook, selection).await?;
    Ok((StatusCode::ACCEPTED, Json(Replayed { replayed })))
}

endpoints! {
    module: service,
    prefix: "/services/{service}",
    operation_infix: "Service",
    scope_errors: (ManagerAuth, ServiceNotFound),
    path_parameters: (ServicePathParam),
    security: (("serviceKey" = []), ("humanToken" = [])),
}

endpoints! {
    module: deployment,
    prefix: "",
    operation_infix: "Deployment",
    scope_errors: (AdminAuth),
    path_parameters: (),
    security: (("humanToken" = [])),
}
