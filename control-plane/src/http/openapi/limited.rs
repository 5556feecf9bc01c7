//! What is said of limits, at every endpoint that the gate of `limits` stands before.

use super::errors::answer_with;
use crate::{
    ephemeral::{Quota, QuotaStatus},
    http::{
        error::ApiError,
        middleware::limits::{Category, Told, category},
    },
};
use std::time::Duration;
use utoipa::openapi::{Ref, RefOr, path::Operation};

/// Adds the refusal, and to all other answers what they tell of what is left.
pub fn add(route: &str, operation: &mut Operation) {
    let Some(category) = category(route) else { return };
    let answers = &mut operation.responses.responses;
    answers.insert("429".to_owned(), answer_with(ApiError::rate_limited(&example(category))).into());
    for answer in answers.values_mut() {
        if let RefOr::T(answer) = answer {
            for (name, component) in [("RateLimit", "RateLimit"), ("RateLimit-Policy", "RateLimitPolicy")] {
                let link = Ref::new(format!("#/components/headers/{component}"));
                answer.headers.insert(name.to_owned(), RefOr::Ref(link));
            }
        }
    }
}

/// With the limits that are usual; a setting may say otherwise.
fn example(category: Category) -> Told {
    let most = match category {
        Category::Auth => 10,
        Category::Feedback => 50,
        Category::Management => 100,
        Category::AuthAddress | Category::Failures => 300,
        Category::Verification => 1000,
    };
    let quota = Quota { max_calls: most, window: Duration::from_mins(1) };
    Told { category, quota, reading: QuotaStatus { remaining: 0, reset_after: Duration::from_secs(7) } }
}
