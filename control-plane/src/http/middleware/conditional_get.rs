//! Cacheable responses with an `ETag`, and 304 for clients that send the same tag in `If-None-Match`.

use axum::{
    body::Bytes,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use sha2::{Digest, Sha256};
use std::time::Duration;

/// `max-age` of content that changes rarely.
pub const DEFAULT_MAX_AGE: Duration = Duration::from_mins(5);

/// Content with its entity tag. Responses share the bytes of the content.
pub struct CacheableContent {
    content_type: HeaderValue,
    etag: String,
    body: Bytes,
}

impl CacheableContent {
    pub fn new(content_type: HeaderValue, body: Bytes) -> Self {
        let etag = format!("\"{}\"", &hex::encode(Sha256::digest(&body))[..32]);
        Self { content_type, etag, body }
    }

    /// A response that is cacheable for `max_age`. The status is 304 if the client already has the content.
    pub fn response(&self, headers: &HeaderMap, max_age: Duration) -> Response {
        // Both values are ASCII, so the fallback is never used.
        let value = |text: &str| HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static(""));
        let caching_headers = [
            (header::CACHE_CONTROL, value(&format!("public, max-age={}", max_age.as_secs()))),
            (header::ETAG, value(&self.etag)),
        ];
        if matches_etag(headers, &self.etag) {
            return (StatusCode::NOT_MODIFIED, caching_headers).into_response();
        }
        (caching_headers, [(header::CONTENT_TYPE, self.content_type.clone())], self.body.clone()).into_response()
    }
}

/// Whether `If-None-Match` contains the entity tag `etag` or `*`, by weak comparison (RFC 9110, section 13.1.2).
fn matches_etag(headers: &HeaderMap, etag: &str) -> bool {
    let values = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let mut tags = values.flat_map(|value| value.split(',')).map(|tag| tag.trim().trim_start_matches("W/"));
    tags.any(|tag| tag == etag || tag == "*")
}
