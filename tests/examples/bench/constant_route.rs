//! An HTTP server on axum with TLS that returns the same text for every request: the control plane cannot be faster.

use axum::{Router, routing::get};
use countersign_tests::tls::{TlsListener, self_signed};
use tokio::net::TcpListener;

/// The path of the route.
pub const PATH: &str = "/constant";

/// A response body that is as long as that of the endpoint `verify`.
const BODY: &str = concat!(
    r#"{"valid":true,"agentId":"agt_00000000000000000000000000","name":"Agent","trustScore":50,"#,
    r#""roles":["reader"],"permissions":["read"],"expiresAt":"2030-01-01T00:00:00Z"}"#
);

/// Serves `<ip>:<port>` until the process is killed.
pub async fn serve(address: &str) {
    let (acceptor, _certificate) = self_signed();
    let listener = TcpListener::bind(address).await.expect("the port is free");
    let app = Router::new().route(PATH, get(async || ([("content-type", "application/json")], BODY)));
    axum::serve(TlsListener { listener, acceptor }, app).await.expect("the server runs");
}
