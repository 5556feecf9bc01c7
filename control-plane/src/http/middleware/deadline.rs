//! A time limit for every request.

use crate::http::error::ApiError;
use axum::response::{IntoResponse, Response};
use std::time::Duration;

/// Maximum time from the complete request to the response. Each transaction and each outgoing call has a shorter timeout, but a
/// request can make several of them.
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(4500);

/// Responds with 503 when the time is over. An open transaction is then rolled back, unless its commit (or the one statement that it
/// consists of) was already sent.
pub async fn enforce_deadline(response: impl Future<Output = Response>) -> Response {
    let response = tokio::time::timeout(RESPONSE_TIMEOUT, response).await;
    response.unwrap_or_else(|_| {
        tracing::error!("no response within {} s", RESPONSE_TIMEOUT.as_secs_f64());
        ApiError::unavailable().into_response()
    })
}
