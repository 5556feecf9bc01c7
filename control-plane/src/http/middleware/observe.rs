//! What every request gets: an id, a line in the log, its place in the metrics.

use super::counted;
use crate::{
    http::{code::ErrorCode, error::Refused, request::origin::Origin, state::AppState},
    metrics,
};
use axum::{
    extract::{MatchedPath, Request, State},
    http::HeaderValue,
    middleware::Next,
    response::Response,
};
use tracing::Instrument;

/// The header that carries the id of a request.
const REQUEST_ID: &str = "x-request-id";

/// The route label of a path that leads nowhere.
const UNMATCHED: &str = "unmatched";

/// The id of a request, as an extension of it.
#[derive(Debug, Clone)]
pub struct RequestId(pub String);

/// Wraps every request.
pub async fn observe(State(state): State<AppState>, mut request: Request, next: Next) -> Response {
    let id = request_id(&state, &request);
    request.extensions_mut().insert(RequestId(id.to_str().unwrap_or_default().to_owned()));
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().map_or(UNMATCHED.to_owned(), |path| path.as_str().to_owned());
    let client = request.extensions().get::<Origin>().map(|origin| origin.address.to_string()).unwrap_or_default();
    let began = state.context.since_boot();
    let span = tracing::info_span!("request", request_id = %id.to_str().unwrap_or_default());
    let mut response = next.run(request).instrument(span.clone()).await;
    let seconds = state.context.since_boot().saturating_sub(began).as_secs_f64();
    let status = response.status();
    let refused = response.extensions().get::<Refused>().copied();
    let (code, reason) = (refused.map(|refused| refused.code), refused.and_then(|refused| refused.reason));
    state.metrics.http_requests.with_label_values(&[method_label(&method), &route, status.as_str()]).inc();
    state.metrics.http_seconds.with_label_values(&[method_label(&method), &route]).observe(seconds);
    if let Some(counter) = counted::counter(&state.metrics.operations, method.as_str(), &route) {
        counter.with_label_values(&[code.map_or(metrics::OK, ErrorCode::as_str)]).inc();
    }
    if let Some(reason) = reason {
        state.metrics.refusals.with_label_values(&[reason.as_str()]).inc();
    }
    let reason = reason.map_or("", countersign_identity::Reason::as_str);
    span.in_scope(|| {
        tracing::info!(
            method = method_label(&method),
            route,
            client,
            status = status.as_u16(),
            seconds,
            reason,
            "answered"
        );
    });
    response.headers_mut().insert(REQUEST_ID, id);
    response
}

/// The caller's id if it is a decent one, else a new one.
fn request_id(state: &AppState, request: &Request) -> HeaderValue {
    let decent = |value: &&HeaderValue| {
        (1..=128).contains(&value.len())
            && value.as_bytes().iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
    };
    let fresh = || {
        let id = format!("{:032x}", state.context.new_id(std::convert::identity));
        HeaderValue::from_str(&id).unwrap_or(HeaderValue::from_static("none"))
    };
    request.headers().get(REQUEST_ID).filter(decent).cloned().unwrap_or_else(fresh)
}

/// Methods are a closed set, whatever is sent.
fn method_label(method: &axum::http::Method) -> &'static str {
    const KNOWN: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    KNOWN.into_iter().find(|known| *known == method.as_str()).unwrap_or("OTHER")
}
