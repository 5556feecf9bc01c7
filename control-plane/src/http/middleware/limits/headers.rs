//! What an answer says of the limits: `RateLimit-Policy` and `RateLimit`, structured fields as in
//! draft-ietf-httpapi-ratelimit-headers-10.

use super::Told;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use std::time::Duration;

/// What may be used: `q` calls in `w` seconds.
const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// What is left: `r` calls, and `t` seconds until there is one more.
const LIMIT: HeaderName = HeaderName::from_static("ratelimit");

/// Says it, if anything was counted.
pub fn tell(told: Option<&Vec<Told>>, headers: &mut HeaderMap) {
    let Some(told) = told else { return };
    let policy = |Told { category, quota, reading: _ }: &Told| {
        format!("\"{}\";q={};w={}", category.name(), quota.max_calls, quota.window.as_secs())
    };
    let limit = |Told { category, quota: _, reading }: &Told| {
        format!("\"{}\";r={};t={}", category.name(), reading.remaining, seconds(reading.reset_after))
    };
    let lines = [(POLICY, told.iter().map(policy).collect::<Vec<_>>()), (LIMIT, told.iter().map(limit).collect())];
    for (name, items) in lines {
        if let Ok(value) = HeaderValue::from_str(&items.join(", ")) {
            headers.insert(name, value);
        }
    }
}

/// Whole seconds, not fewer than it takes.
pub fn seconds(wait: Duration) -> u64 {
    wait.as_secs() + u64::from(wait.subsec_nanos() > 0)
}
