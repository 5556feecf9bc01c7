//! Adds the rate limits to the description of each limited endpoint.

use super::{document::add_header, errors::error_response};
use crate::{
    ephemeral::QuotaStatus,
    http::{
        error::ApiError,
        middleware::limits::{Category, LimitStatus, LimitsPerMinute, category},
    },
};
use std::time::Duration;
use utoipa::openapi::{RefOr, path::Operation};

/// Only OAuth endpoints declare this response. They also declare 429 in the error format of OAuth, so we add no 429 to them.
const DEFAULT_RESPONSE: &str = "default";

/// Adds the response 429 if the endpoint has none, and the rate limit headers to all responses.
pub fn add(route: &str, operation: &mut Operation) {
    let Some(category) = category(route) else { return };
    let responses = &mut operation.responses.responses;
    if !responses.contains_key(DEFAULT_RESPONSE) {
        let error = ApiError::rate_limited(&example(category));
        responses.insert("429".to_owned(), error_response(error).into());
    }
    for response in responses.values_mut() {
        if let RefOr::T(response) = response {
            add_header(response, "RateLimit", "RateLimit");
            add_header(response, "RateLimit-Policy", "RateLimitPolicy");
        }
    }
}

/// The status of an exhausted limit of this category, with the default quota.
fn example(category: Category) -> LimitStatus {
    let quota_status = QuotaStatus { remaining: 0, reset_after: Duration::from_secs(7) };
    LimitStatus { category, quota: LimitsPerMinute::DEFAULT.quota(category), quota_status }
}
