//! The routes of the API.

use super::{
    api::{
        agents, assignments, audit, auth, health, oauth, own_agents, protected_resource, roles, service_keys, services,
        sidecars, signing_keys, status, transfers, trust, verify, webhooks, well_known,
    },
    error::ApiError,
    middleware::chain::{Middleware, handle_request},
    openapi::{
        docs,
        document::{self, PublishedDocument},
    },
    state::AppState,
};
use axum::{Extension, Router, middleware, routing::get};
use std::sync::{Arc, LazyLock};
use utoipa_axum::{router::OpenApiRouter, routes};

/// All routes. Each handler declares its method, path and documentation; handlers on one line share a path.
fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::with_openapi(document::base())
        .merge(authentication_routes())
        .routes(routes!(services::create, services::list))
        .routes(routes!(services::read, services::change, services::remove))
        .routes(routes!(transfers::list))
        .routes(routes!(transfers::offer, transfers::read, transfers::withdraw))
        .routes(routes!(transfers::accept))
        .routes(routes!(service_keys::create, service_keys::list))
        .routes(routes!(service_keys::revoke))
        .routes(routes!(sidecars::list))
        .routes(routes!(sidecars::enforcement))
        .routes(routes!(verify::verify))
        .routes(routes!(roles::create, roles::list))
        .routes(routes!(roles::change, roles::remove))
        .routes(routes!(agents::list))
        .routes(routes!(agents::read))
        .routes(routes!(roles::assign))
        .routes(routes!(assignments::change))
        .routes(routes!(roles::revoke))
        .routes(routes!(agents::set_status))
        .routes(routes!(own_agents::list))
        .routes(routes!(own_agents::remove))
        .routes(routes!(own_agents::list_services))
        .routes(routes!(own_agents::leave_or_readmit))
        .routes(routes!(trust::submit))
        .routes(routes!(trust::history))
        .merge(webhooks::service::routes())
        .merge(webhooks::deployment::routes())
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

/// Agents can log in at the endpoints under `/auth`, or with any OAuth client at the endpoints of OAuth.
fn authentication_routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(auth::register))
        .routes(routes!(auth::challenge))
        .routes(routes!(auth::authenticate))
        .routes(routes!(auth::refresh))
        .routes(routes!(auth::revoke))
        .routes(routes!(oauth::token::token))
        .routes(routes!(oauth::authorize))
        .routes(routes!(oauth::introspect::introspect))
        .routes(routes!(oauth::revoke::revoke))
        .routes(routes!(protected_resource::read))
}

/// The OpenAPI 3.1 description of the API, with a placeholder as server URL.
pub fn api_description() -> &'static str {
    static DESCRIPTION: LazyLock<String> =
        LazyLock::new(|| document::to_json(&document::finish(routes().into_openapi())));
    &DESCRIPTION
}

pub fn router(state: AppState) -> Router {
    let (routes, _) = routes().split_for_parts();
    let published = Arc::new(PublishedDocument::new(api_description(), state.context.issuer()));
    let middleware = Arc::new(Middleware::new(state.clone()));
    routes
        .route("/.well-known/oauth-authorization-server/{*path}", get(well_known::authorization_server_with_path))
        .fallback(async || ApiError::not_found())
        .method_not_allowed_fallback(async || ApiError::method_not_allowed())
        .layer((middleware::from_fn_with_state(middleware, handle_request), Extension(published)))
        .with_state(state)
}
