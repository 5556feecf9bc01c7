//! The response headers `RateLimit-Policy` and `RateLimit`: structured fields as in draft-ietf-httpapi-ratelimit-headers-10.

use super::LimitStatus;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use std::time::Duration;

/// The header with the limits: `q` requests in `w` seconds.
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// The header with the remaining requests of each limit: `r` requests, and `t` seconds until one more is allowed.
const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");

/// Adds both rate limit headers for a list of limits.
pub fn add_headers(statuses: &[LimitStatus], headers: &mut HeaderMap) {
    let policy = |LimitStatus { category, quota, quota_status: _ }: &LimitStatus| {
        format!("\"{}\";q={};w={}", category.as_str(), quota.max_calls, quota.window.as_secs())
    };
    let remaining = |LimitStatus { category, quota: _, quota_status }: &LimitStatus| {
        format!("\"{}\";r={};t={}", category.as_str(), quota_status.remaining, ceil_seconds(quota_status.reset_after))
    };
    let values = [
        (RATELIMIT_POLICY, statuses.iter().map(policy).collect::<Vec<_>>()),
        (RATELIMIT, statuses.iter().map(remaining).collect()),
    ];
    for (name, items) in values {
        if let Ok(value) = HeaderValue::from_str(&items.join(", ")) {
            headers.insert(name, value);
        }
    }
}

/// Whether a limit has counted or refused the request of this response.
pub fn is_counted(headers: &HeaderMap) -> bool {
    headers.contains_key(RATELIMIT)
}

/// The duration in seconds, rounded up.
pub fn ceil_seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}
