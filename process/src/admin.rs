//! The admin port: an HTTP server without TLS for `/livez`, `/readyz`, `/metrics`, and the routes that a server adds.

use crate::{
    Readiness, Shutdown,
    server::{self, ConnectionCaps, ConnectionMetrics, LINGER, PlainText, PortSettings, ProtocolLimits},
};
use axum::{Router, extract::State, http::StatusCode, http::header, response::IntoResponse, routing::get};
use prometheus::{Registry, TextEncoder};
use std::time::Duration;
use tokio::net::TcpListener;

/// The limits of the admin port. Probes and Prometheus need few connections.
fn port_settings(metrics: ConnectionMetrics) -> PortSettings {
    PortSettings {
        name: "admin",
        connections_setting: None,
        caps: ConnectionCaps { total: 128, per_client: 128, pending: 64 },
        trusted_proxies: Vec::new(),
        first_request_timeout: Duration::from_secs(10),
        // This is longer than the usual intervals of Prometheus and of probes, so they can use a connection again.
        idle_timeout: Duration::from_secs(90),
        linger: LINGER,
        protocol: ProtocolLimits {
            allows_http1: true,
            max_head_size: 16 * 1024,
            max_streams: 16,
            responses_last: false,
            receive_window: 65_535,
        },
        messages: None,
        metrics,
    }
}

/// Serves the admin port until shutdown is requested. `further_routes` are added to the routes that both servers have: `/livez`,
/// `/readyz` and `/metrics`.
pub async fn serve(
    listener: TcpListener,
    further_routes: Router,
    readiness: Readiness,
    registry: Registry,
    connections: ConnectionMetrics,
    shutdown: Shutdown,
) -> std::io::Result<()> {
    let routes = Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz).with_state(readiness))
        .route("/metrics", get(metrics).with_state(registry))
        .merge(further_routes);
    server::serve(listener, PlainText, routes, port_settings(connections), shutdown).await
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
