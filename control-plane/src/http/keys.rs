//! `GET /.well-known/jwks.json` (RFC 7517).

use super::router::AppState;
use axum::{Json, extract::State, http::header, response::IntoResponse};
use serde_json::json;

/// All keys whose tokens are believed. A client may keep them for five minutes.
pub async fn jwks(State(state): State<AppState>) -> impl IntoResponse {
    let keys = json!({ "keys": state.context.keyring.published() });
    ([(header::CACHE_CONTROL, "public, max-age=300"), (header::CONTENT_TYPE, "application/jwk-set+json")], Json(keys))
}
