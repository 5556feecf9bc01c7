//! `POST /explain` of the admin port: explains the decision about a request. Only clients on the same host or in the same pod
//! may use it, because the answer discloses the rules and the roles of agents.

use crate::check::{Authorizer, DescribedRequest, Explanation};
use axum::{
    Json, Router,
    body::Bytes,
    extract::{ConnectInfo, DefaultBodyLimit, State},
    http::{HeaderMap, StatusCode, header},
    routing::post,
};
use countersign_process::server::ConnectionAddresses;
use std::sync::Arc;

/// The largest accepted body, in bytes: enough for the longest token and the description of a request.
const MAX_BODY_BYTES: usize = 64 * 1024;

pub fn routes(authorizer: Arc<Authorizer>) -> Router {
    let explain = post(explain).layer(DefaultBodyLimit::max(MAX_BODY_BYTES));
    Router::new().route("/explain", explain).with_state(authorizer)
}

async fn explain(
    State(authorizer): State<Arc<Authorizer>>,
    ConnectInfo(addresses): ConnectInfo<ConnectionAddresses>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Json<Explanation>, (StatusCode, String)> {
    if !is_on_loopback(addresses) {
        return Err((StatusCode::FORBIDDEN, "/explain is available on loopback only\n".to_owned()));
    }
    // This keeps out web pages in a browser on this host: they cannot send this content type to another origin.
    if headers.get(header::CONTENT_TYPE).is_none_or(|value| value != "application/json") {
        return Err((StatusCode::UNSUPPORTED_MEDIA_TYPE, "send Content-Type: application/json\n".to_owned()));
    }
    // The error of the parser is not returned, because it may contain the token.
    let request: DescribedRequest = serde_json::from_slice(&body).map_err(|_| {
        let fields =
            "the body must be a JSON object with method, host, path, mcpMethod, mcpName, contextExtensions and token\n";
        (StatusCode::BAD_REQUEST, fields.to_owned())
    })?;
    let explanation = authorizer.explain_described(request);
    explanation.map(Json).ok_or((StatusCode::INTERNAL_SERVER_ERROR, "the request cannot be explained\n".to_owned()))
}

/// Whether both ends of a connection are on loopback. A proxy in the same pod may connect from a loopback address for clients
/// elsewhere, as Istio does from 127.0.0.6, but it connects to the address of the pod.
fn is_on_loopback(ConnectionAddresses { peer, local }: ConnectionAddresses) -> bool {
    [peer, local].iter().all(|address| address.ip().to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_must_be_on_loopback() {
        for (peer, local, expected) in [
            ("127.0.0.1:7", "127.0.0.1:9092", true),
            ("[::1]:7", "[::1]:9092", true),
            ("[::ffff:127.0.0.1]:7", "[::ffff:127.0.0.1]:9092", true),
            ("10.9.9.9:7", "10.1.2.3:9092", false),
            ("10.1.2.3:7", "10.1.2.3:9092", false),
            ("127.0.0.6:7", "10.1.2.3:9092", false),
            ("[::ffff:127.0.0.6]:7", "[::ffff:10.1.2.3]:9092", false),
            ("10.9.9.9:7", "127.0.0.1:9092", false),
        ] {
            let addresses = ConnectionAddresses { peer: peer.parse().unwrap(), local: local.parse().unwrap() };
            assert_eq!(is_on_loopback(addresses), expected, "{peer} to {local}");
        }
    }
}
