//! The admin port: an HTTP server without TLS for the routes `/livez`, `/readyz` and `/metrics`.

use crate::{Readiness, Shutdown};
use axum::{Router, extract::State, http::StatusCode, http::header, response::IntoResponse, routing::get};
use prometheus::{Registry, TextEncoder};
use tokio::net::TcpListener;

/// Serves the admin port until shutdown is requested.
pub async fn serve(
    listener: TcpListener,
    readiness: Readiness,
    registry: Registry,
    shutdown: Shutdown,
) -> std::io::Result<()> {
    let routes = Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz).with_state(readiness))
        .route("/metrics", get(metrics).with_state(registry));
    axum::serve(listener, routes).with_graceful_shutdown(shutdown.requested_owned()).await
}

async fn readyz(State(readiness): State<Readiness>) -> (StatusCode, String) {
    let pending = readiness.pending();
    if pending.is_empty() {
        (StatusCode::OK, "ok\n".into())
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, format!("waiting for {}\n", pending.join(", ")))
    }
}

async fn metrics(State(registry): State<Registry>) -> impl IntoResponse {
    match TextEncoder::new().encode_to_string(&registry.gather()) {
        Ok(text) => ([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response(),
        Err(error) => {
            tracing::error!(%error, "cannot encode the metrics");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}
