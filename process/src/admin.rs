//! The admin port: an HTTP server without TLS for `/livez`, `/readyz`, `/metrics`, and the routes that a server adds.
//!
//! Invariant: over loopback, a web page in a browser on this machine reads nothing but `/livez` and `/readyz`.

use crate::{
    Readiness, Shutdown,
    server::{
        self, ConnectionAddresses, ConnectionCaps, ConnectionMetrics, LINGER, PlainText, PortSettings, ProtocolLimits,
    },
};
use axum::{
    Router,
    extract::{ConnectInfo, Request, State},
    http::{StatusCode, header, uri::Authority},
    middleware::{Next, from_fn},
    response::{IntoResponse, Response},
    routing::get,
};
use countersign_identity::dns_rebinding::can_be_rebound;
use prometheus::{Registry, TextEncoder};
use std::{net::SocketAddr, time::Duration};
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
    let routes = routes(further_routes, readiness, registry);
    server::serve(listener, PlainText, routes, port_settings(connections), shutdown).await
}

fn routes(further_routes: Router, readiness: Readiness, registry: Registry) -> Router {
    let protected = Router::new().route("/metrics", get(metrics).with_state(registry)).merge(further_routes);
    Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz).with_state(readiness))
        .merge(protected.route_layer(from_fn(refuse_names_on_loopback)))
}

/// Refuses a request that has come in on a loopback address and names another host than `localhost` or an IP address, because a web
/// page in a browser on this machine may have sent it. On other addresses, every name is allowed: Prometheus may use a DNS name
/// of the server, and the network decides who can connect there.
async fn refuse_names_on_loopback(
    ConnectInfo(ConnectionAddresses { peer: _, local }): ConnectInfo<ConnectionAddresses>,
    request: Request,
    next: Next,
) -> Response {
    let local = SocketAddr::new(local.ip().to_canonical(), local.port());
    if !local.ip().is_loopback() || names_only_fixed_hosts(&request) {
        return next.run(request).await;
    }
    let path = request.uri().path();
    let message = format!(
        "on loopback, the header Host (in HTTP/2, :authority) must be localhost or an IP address: use http://{local}{path}\n"
    );
    (StatusCode::MISDIRECTED_REQUEST, message).into_response()
}

/// Whether a request has a host, and all its hosts are `localhost` or IP addresses. The host of HTTP/2 is in the URI.
fn names_only_fixed_hosts(request: &Request) -> bool {
    let authority = request.uri().authority().map(Authority::as_str);
    let headers = request.headers().get_all(header::HOST).iter().map(|host| host.to_str().unwrap_or_default());
    let mut hosts = authority.into_iter().chain(headers).peekable();
    hosts.peek().is_some() && !hosts.any(can_be_rebound)
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

#[cfg(test)]
mod tests {
    use super::*;
    use axum::{body::Body, http::Request};
    use tower_service::Service as _;

    /// The status of a response to a request that has come in on an address. `hosts` are the values of `Host`.
    async fn status(local: &str, uri: &str, hosts: &[&str]) -> u16 {
        let explain = Router::new().route("/explain", get(|| async { "explanation" }));
        let mut routes = routes(explain, Readiness::default(), Registry::new());
        let mut request = Request::builder().uri(uri).body(Body::empty()).unwrap();
        for host in hosts {
            request.headers_mut().append(header::HOST, host.parse().unwrap());
        }
        let addresses = ConnectionAddresses { peer: "127.0.0.1:7".parse().unwrap(), local: local.parse().unwrap() };
        request.extensions_mut().insert(ConnectInfo(addresses));
        routes.call(request).await.unwrap().status().as_u16()
    }

    #[tokio::test]
    async fn on_loopback_the_host_is_localhost_or_an_address() {
        for local in ["127.0.0.1:9090", "127.0.1.1:9090", "[::1]:9090", "[::ffff:127.0.0.1]:9090"] {
            for (hosts, expected) in [
                (&["localhost:9090"][..], 200),
                (&["localhost:8000"], 200),
                (&["127.0.0.1:9090"], 200),
                (&["[::1]"], 200),
                (&["10.1.2.3:9090"], 200),
                (&["page.example:9090"], 421),
                (&["localhost", "page.example"], 421),
                (&[""], 421),
                (&[], 421),
            ] {
                for path in ["/metrics", "/explain"] {
                    assert_eq!(status(local, path, hosts).await, expected, "{path} of {hosts:?} on {local}");
                }
                assert_eq!(status(local, "/livez", hosts).await, 200);
                assert_eq!(status(local, "/readyz", hosts).await, 200);
                assert_eq!(status(local, "/nowhere", hosts).await, 404);
            }
        }
    }

    #[tokio::test]
    async fn on_other_addresses_every_host_is_allowed() {
        for local in ["10.1.2.3:9090", "[fd00::2]:9090", "[::ffff:10.1.2.3]:9090"] {
            for hosts in [&["control-plane.countersign.svc:9090"][..], &["10.1.2.3:9090"], &[]] {
                assert_eq!(status(local, "/metrics", hosts).await, 200, "{hosts:?} on {local}");
            }
        }
    }

    #[tokio::test]
    async fn authority_of_http_2_counts_as_host() {
        for (uri, hosts, expected) in [
            ("http://localhost:9090/metrics", &[][..], 200),
            ("http://page.example/metrics", &[], 421),
            ("http://page.example/metrics", &["localhost"], 421),
            ("http://localhost/metrics", &["page.example"], 421),
        ] {
            assert_eq!(status("127.0.0.1:9090", uri, hosts).await, expected, "{uri} {hosts:?}");
        }
    }
}
