//! No request waits for ever, whatever hangs.

use crate::http::error::ApiError;
use axum::{
    extract::Request,
    middleware::Next,
    response::{IntoResponse, Response},
};
use std::time::Duration;

/// How long an answer may take from when all of the request is here. Each transaction and each call elsewhere ends
/// before; this is for requests that make several.
const LONGEST: Duration = Duration::from_millis(4500);

/// Answers in time: 503 if nothing else. What was under way is rolled back, unless its commit was.
pub async fn bound(request: Request, next: Next) -> Response {
    let answered = tokio::time::timeout(LONGEST, next.run(request)).await;
    answered.unwrap_or_else(|_| {
        tracing::error!("no answer within {} s", LONGEST.as_secs_f64());
        ApiError::unavailable().into_response()
    })
}
