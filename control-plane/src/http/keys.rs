//! `GET /.well-known/jwks.json` (RFC 7517).

use super::router::AppState;
use axum::{
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::json;
use sha2::{Digest, Sha256};

/// All keys whose tokens are believed. A client may keep them for five minutes, and then ask whether they changed.
pub async fn jwks(State(state): State<AppState>, headers: HeaderMap) -> Response {
    let body = json!({ "keys": state.context.keyring.published() }).to_string();
    let tag = format!("\"{}\"", &hex::encode(Sha256::digest(&body))[..32]);
    let caching = [
        (header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=300")),
        (header::ETAG, HeaderValue::from_str(&tag).unwrap_or(HeaderValue::from_static("\"\""))),
    ];
    if is_known(&headers, &tag) {
        return (StatusCode::NOT_MODIFIED, caching).into_response();
    }
    (caching, [(header::CONTENT_TYPE, "application/jwk-set+json")], body).into_response()
}

/// Whether the client has this representation already (RFC 9110, 13.1.2: weakly compared).
fn is_known(headers: &HeaderMap, tag: &str) -> bool {
    let values = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let mut tags = values.flat_map(|value| value.split(',')).map(|known| known.trim().trim_start_matches("W/"));
    tags.any(|known| known == tag || known == "*")
}
