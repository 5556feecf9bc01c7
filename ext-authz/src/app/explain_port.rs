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
use std::{net::SocketAddr, sync::Arc};

/// The largest accepted body, in bytes: enough for the longest token and the description of a request.
const MAX_BODY_BYTES: usize = 64 * 1024;

pub fn routes(authorizer: Arc<Authorizer>) -> Router {
    let explain = post(explain).layer(DefaultBodyLimit::max(MAX_BODY_BYTES));
    Router::new().route("/explain", explain).with_state(authorizer)
}

async fn explain(
    State(authorizer): State<Arc<Authorizer>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Json<Explanation>, (StatusCode, String)> {
    if !peer.ip().to_canonical().is_loopback() {
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
