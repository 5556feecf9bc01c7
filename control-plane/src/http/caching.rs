//! Answers that a client may keep for five minutes, and ask then whether they changed.

use axum::{
    body::Bytes,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use sha2::{Digest, Sha256};

/// The body, or 304 if the client has it.
pub fn answer(headers: &HeaderMap, content_type: HeaderValue, body: Bytes) -> Response {
    let tag = format!("\"{}\"", &hex::encode(Sha256::digest(&body))[..32]);
    let caching = [
        (header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=300")),
        (header::ETAG, HeaderValue::from_str(&tag).unwrap_or(HeaderValue::from_static("\"\""))),
    ];
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
