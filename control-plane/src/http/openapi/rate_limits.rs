//! Adds the rate limits to the description of each limited endpoint.

use super::errors::error_response;
use crate::{
    ephemeral::{Quota, QuotaStatus},
    http::{
        error::ApiError,
        middleware::limits::{Category, LimitStatus, category},
    },
};
use std::time::Duration;
use utoipa::openapi::{Ref, RefOr, path::Operation};

/// The response to all errors of an endpoint whose errors have a format of their own.
const ALL_ERRORS: &str = "default";

/// Adds the response 429, unless the endpoint describes its errors together, and the rate limit headers to all responses.
pub fn add(route: &str, operation: &mut Operation) {
    let Some(category) = category(route) else { return };
    let responses = &mut operation.responses.responses;
    if !responses.contains_key(ALL_ERRORS) {
        let error = ApiError::rate_limited(&example(category));
        responses.insert("429".to_owned(), error_response(error).into());
    }
    for response in responses.values_mut() {
        if let RefOr::T(response) = response {
            for (name, component) in [("RateLimit", "RateLimit"), ("RateLimit-Policy", "RateLimitPolicy")] {
                let reference = Ref::new(format!("#/components/headers/{component}"));
                response.headers.insert(name.to_owned(), RefOr::Ref(reference));
            }
        }
    }
}

/// An exhausted limit with the default quota. An operator can configure other quotas.
fn example(category: Category) -> LimitStatus {
    let max_calls = match category {
        Category::Auth => 10,
        Category::Feedback => 50,
        Category::Management => 100,
        Category::AuthAddress | Category::Failures => 300,
        Category::Verification => 1000,
        Category::Agent => 120,
        Category::FeedbackOwner => 250,
        Category::ManagementOwner => 500,
        Category::VerificationOwner => 20_000,
    };
    let quota = Quota { max_calls, window: Duration::from_mins(1) };
    LimitStatus { category, quota, quota_status: QuotaStatus { remaining: 0, reset_after: Duration::from_secs(7) } }
}
