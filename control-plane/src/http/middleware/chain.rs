//! The order in which the middleware handles a request: client address, log, metrics, panics, HTTPS, body, deadline, rate limits.
//!
//! Most parts are functions that get the next part as a closure, and together they are one layer of the router. If each part were a
//! layer, every layer would clone all later layers for each request.

use super::{
    deadline::enforce_deadline, limits::enforce_rate_limits, request_lines::RequestLogLines, telemetry::record_request,
};
use crate::http::{
    error::{ApiError, OAUTH_PATH, into_oauth_format},
    request::{
        body::{buffer_body, request_memory},
        client_address::{require_https, resolve_client_address},
    },
    state::AppState,
};
use axum::{
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use countersign_process::server::SharedMemory;
use futures_util::FutureExt;
use std::{panic::AssertUnwindSafe, sync::Arc};

/// The state of the middleware.
pub struct Middleware {
    state: AppState,
    log_lines: Arc<RequestLogLines>,
    /// The memory for all requests in progress.
    memory: SharedMemory,
}

impl Middleware {
    pub fn new(state: AppState) -> Self {
        let memory = request_memory(state.metrics.overloaded.clone());
        Self { state, log_lines: Arc::default(), memory }
    }
}

/// Handles a request: logs and counts it, and refuses it or passes it on. A panic becomes a response.
pub async fn handle_request(State(middleware): State<Arc<Middleware>>, mut request: Request, next: Next) -> Response {
    let Middleware { state, log_lines, memory } = &*middleware;
    resolve_client_address(state, &mut request);
    let is_for_oauth = request.uri().path().starts_with(OAUTH_PATH);
    record_request(state, log_lines, request, async |request| {
        let response = async {
            if let Err(error) = require_https(&request) {
                return error.into_response();
            }
            buffer_body(memory, request, async |request| {
                enforce_deadline(enforce_rate_limits(state, request, async |request| next.run(request).await)).await
            })
            .await
        };
        let response = convert_panic(response).await;
        if is_for_oauth { into_oauth_format(response) } else { response }
    })
    .await
}

/// Returns the response, or 500 after a panic. Continuing is safe: the panic drops the state of its request, and the locks of
/// shared state survive panics.
async fn convert_panic(response: impl Future<Output = Response>) -> Response {
    AssertUnwindSafe(response).catch_unwind().await.unwrap_or_else(|_| ApiError::panic_response())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::StatusCode;

    #[tokio::test]
    async fn panic_is_an_internal_error() {
        assert_eq!(convert_panic(async { panic!("a fault") }).await.status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(convert_panic(async { StatusCode::OK.into_response() }).await.status(), StatusCode::OK);
    }
}
