//! Every route there is.

use super::{
    api::{agents, audit, auth, health, roles, services, signing_keys, status, trust, verify, webhooks, well_known},
    error::ApiError,
    middleware::{deadline, limits, observe},
    openapi::{
        docs,
        document::{self, Published},
    },
    request::{body, origin},
    state::AppState,
};
use axum::{Extension, Router, middleware};
use std::sync::Arc;
use tower_http::catch_panic::CatchPanicLayer;
use utoipa_axum::{router::OpenApiRouter, routes};

/// Every route. Method, path and what is said of it stand at its handler; what is in one line shares a path.
fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::with_openapi(document::blank())
        .routes(routes!(auth::register))
        .routes(routes!(auth::challenge))
        .routes(routes!(auth::authenticate))
        .routes(routes!(auth::refresh))
        .routes(routes!(auth::revoke))
        .routes(routes!(services::create, services::list))
        .routes(routes!(services::read, services::change))
        .routes(routes!(services::create_key, services::list_keys))
        .routes(routes!(services::revoke_key))
        .routes(routes!(verify::verify))
        .routes(routes!(roles::create, roles::list))
        .routes(routes!(roles::change, roles::remove))
        .routes(routes!(agents::list))
        .routes(routes!(agents::read))
        .routes(routes!(roles::assign))
        .routes(routes!(roles::revoke))
        .routes(routes!(agents::set_status))
        .routes(routes!(trust::submit))
        .routes(routes!(trust::history))
        .routes(routes!(webhooks::service::create, webhooks::service::list))
        .routes(routes!(webhooks::service::read, webhooks::service::change, webhooks::service::remove))
        .routes(routes!(webhooks::service::rotate))
        .routes(routes!(webhooks::service::test))
        .routes(routes!(webhooks::service::replay))
        .routes(routes!(webhooks::service::list_deliveries))
        .routes(routes!(webhooks::service::read_delivery))
        .routes(routes!(webhooks::service::replay_one))
        .routes(routes!(webhooks::deployment::create, webhooks::deployment::list))
        .routes(routes!(webhooks::deployment::read, webhooks::deployment::change, webhooks::deployment::remove))
        .routes(routes!(webhooks::deployment::rotate))
        .routes(routes!(webhooks::deployment::test))
        .routes(routes!(webhooks::deployment::replay))
        .routes(routes!(webhooks::deployment::list_deliveries))
        .routes(routes!(webhooks::deployment::read_delivery))
        .routes(routes!(webhooks::deployment::replay_one))
        .routes(routes!(audit::list))
        .routes(routes!(signing_keys::list))
        .routes(routes!(signing_keys::rotate))
        .routes(routes!(signing_keys::revoke))
        .routes(routes!(well_known::jwks))
        .routes(routes!(well_known::authorization_server))
        .routes(routes!(health::health))
        .routes(routes!(status::status))
        .routes(routes!(document::openapi))
        .routes(routes!(docs::page))
        .routes(routes!(docs::file))
}

/// The description of the API in OpenAPI 3.1, of no server in particular.
pub fn api_description() -> String {
    document::text_of(&document::finish(routes().into_openapi(), document::ANYWHERE))
}

/// The API.
pub fn router(state: AppState) -> Router {
    let (routes, document) = routes().split_for_parts();
    let published = Arc::new(Published::new(document, state.context.issuer()));
    routes
        .fallback(async || ApiError::not_found())
        .method_not_allowed_fallback(async || ApiError::method_not_allowed())
        .layer(Extension(published))
        .layer(middleware::from_fn_with_state(state.clone(), limits::limit))
        .layer(middleware::from_fn(deadline::bound))
        .layer(middleware::from_fn(body::take_in))
        .layer(middleware::from_fn(origin::require_https))
        .layer(CatchPanicLayer::custom(|_| ApiError::answer_to_panic()))
        .layer(middleware::from_fn_with_state(state.clone(), observe::observe))
        .layer(middleware::from_fn_with_state(state.clone(), origin::find))
        .with_state(state)
}
