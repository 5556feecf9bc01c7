//! Every route there is.

use super::{
    agents, audit, auth, body,
    error::ApiError,
    health, keys, observe,
    origin::{self, Proxies},
    roles, services, status, trust, verify,
};
use crate::{humans::Humans, metrics::Metrics, operations::Context};
use axum::{
    Router, middleware,
    routing::{delete, get, patch, post, put},
};
use std::{sync::Arc, time::Duration};
use tower_http::catch_panic::CatchPanicLayer;

/// What every handler works with.
#[derive(Clone)]
pub struct AppState {
    /// What operations work with.
    pub context: Arc<Context>,
    /// Whose tokens speak for people.
    pub humans: Arc<Humans>,
    /// What is counted.
    pub metrics: Metrics,
    /// The proxies in front of this server.
    pub proxies: Arc<Proxies>,
    /// When this process began, on the boot-time clock.
    pub began: Duration,
}

/// The API.
pub fn router(state: AppState) -> Router {
    Router::new()
        .route("/auth/register", post(auth::register))
        .route("/auth/challenge", post(auth::challenge))
        .route("/auth/authenticate", post(auth::authenticate))
        .route("/auth/refresh", post(auth::refresh))
        .route("/auth/revoke", post(auth::revoke))
        .route("/services", post(services::create).get(services::list))
        .route("/services/{service}", get(services::read).patch(services::change))
        .route("/services/{service}/keys", post(services::create_key).get(services::list_keys))
        .route("/services/{service}/keys/{key}", delete(services::revoke_key))
        .route("/services/{service}/verify", get(verify::verify))
        .route("/services/{service}/roles", post(roles::create).get(roles::list))
        .route("/services/{service}/roles/{role}", patch(roles::change).delete(roles::remove))
        .route("/services/{service}/agents", get(agents::list))
        .route("/services/{service}/agents/{agent}", get(agents::read))
        .route("/services/{service}/agents/{agent}/roles", post(roles::assign))
        .route("/services/{service}/agents/{agent}/roles/{role}", delete(roles::revoke))
        .route("/agents/{agent}/status", put(agents::set_status))
        .route("/trust/feedback", post(trust::submit))
        .route("/trust/agents/{agent}/history", get(trust::history))
        .route("/audit", get(audit::list))
        .route("/.well-known/jwks.json", get(keys::jwks))
        .route("/health", get(health::health))
        .route("/status", get(status::status))
        .fallback(async || ApiError::not_found())
        .method_not_allowed_fallback(async || ApiError::method_not_allowed())
        .layer(middleware::from_fn(body::take_in))
        .layer(middleware::from_fn(origin::require_https))
        .layer(CatchPanicLayer::custom(|_| ApiError::answer_to_panic()))
        .layer(middleware::from_fn_with_state(state.clone(), observe::observe))
        .layer(middleware::from_fn_with_state(state.clone(), origin::find))
        .with_state(state)
}
