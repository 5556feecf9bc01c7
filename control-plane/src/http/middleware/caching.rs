//! Answers that a client may keep for a while, and ask then whether they changed.

use axum::{
    body::Bytes,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use sha2::{Digest, Sha256};
use std::time::Duration;

/// How long what seldom changes may be kept.
pub const DEFAULT_LIMIT: Duration = Duration::from_mins(5);

/// The body, which may be kept for as long as `age`, or 304 if the client has it.
pub fn answer(headers: &HeaderMap, content_type: HeaderValue, body: Bytes, age: Duration) -> Response {
    let tag = format!("\"{}\"", &hex::encode(Sha256::digest(&body))[..32]);
    let value = |text: &str| HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static(""));
    let caching =
        [(header::CACHE_CONTROL, value(&format!("public, max-age={}", age.as_secs()))), (header::ETAG, value(&tag))];
    if is_known(headers, &tag) {
        return (StatusCode::NOT_MODIFIED, caching).into_response();
    }
    (caching, [(header::CONTENT_TYPE, content_type)], body).into_response()
}

/// Whether the client has this representation already (RFC 9110, 13.1.2: weakly compared).
fn is_known(headers: &HeaderMap, tag: &str) -> bool {
    let values = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let mut tags = values.flat_map(|value| value.split(',')).map(|known| known.trim().trim_start_matches("W/"));
    tags.any(|known| known == tag || known == "*")
}
