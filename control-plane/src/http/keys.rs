//! `GET /.well-known/jwks.json` (RFC 7517).

use super::{
    caching,
    document::errors::{Errors, Nothing},
    router::AppState,
    schema,
};
use axum::{
    extract::State,
    http::{HeaderMap, HeaderValue},
    response::Response,
};
use serde_json::json;

/// The keys that sign access tokens
///
/// All keys whose tokens are believed. A client may keep them for five minutes, and then ask whether they changed.
#[utoipa::path(
    get, path = "/.well-known/jwks.json", operation_id = "readKeys", tag = "Server", security(()),
    responses(
        (
            status = 200, description = "A JWK set (RFC 7517)", body = schema::KeySet,
            content_type = "application/jwk-set+json", headers(("ETag", description = "For `If-None-Match`")),
        ),
        (status = 304, description = "Not changed since the `ETag` in `If-None-Match`"),
        Errors<(Nothing,)>,
    )
)]
pub async fn jwks(State(state): State<AppState>, headers: HeaderMap) -> Response {
    let body = json!({ "keys": state.context.keyring.published() }).to_string();
    caching::answer(&headers, HeaderValue::from_static("application/jwk-set+json"), body.into())
}
