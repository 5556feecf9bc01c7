//! Assigns an id to every request, logs the request and counts it.

use super::{
    limits,
    operation_metrics::{OtherOperation, operation_counter},
    request_lines::{BoundedClass, RequestLines},
};
use crate::{
    http::{code::ErrorCode, error::ErrorLabels, request::client_address::ClientAddress, state::AppState},
    metrics,
};
use axum::{
    extract::{MatchedPath, Request},
    http::HeaderValue,
    response::Response,
};
use std::sync::Arc;
use tracing::Instrument;

/// The header with the request id.
const REQUEST_ID_HEADER: &str = "x-request-id";

/// The `route` label of requests whose path no route matches.
const UNMATCHED_ROUTE: &str = "unmatched";

/// The id of a request, stored as an extension of the request.
#[derive(Debug, Clone)]
pub struct RequestId(pub String);

/// Runs the request in a span with its id, then logs and counts it. Every request is counted, but not every request is logged, see
/// [`RequestLines`].
pub async fn record_request(
    state: &AppState,
    lines: &Arc<RequestLines>,
    mut request: Request,
    next: impl AsyncFnOnce(Request) -> Response,
) -> Response {
    let id = request_id(state, &request);
    request.extensions_mut().insert(RequestId(id.to_str().unwrap_or_default().to_owned()));
    let method = request.method().clone();
    let path = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let route_is_limited = path.as_deref().map(|path| limits::category(path).is_some());
    let route = path.unwrap_or_else(|| UNMATCHED_ROUTE.to_owned());
    let client = request.extensions().get::<ClientAddress>().map(|client| client.ip.to_string()).unwrap_or_default();
    let started_at = state.context.since_boot();
    let span = tracing::info_span!("request", request_id = %id.to_str().unwrap_or_default());
    let mut response = next(request).instrument(span.clone()).await;
    let seconds = state.context.since_boot().saturating_sub(started_at).as_secs_f64();
    let status = response.status();
    let error = response.extensions().get::<ErrorLabels>().copied();
    let (code, reason) = (error.map(|error| error.code), error.and_then(|error| error.reason));
    state.metrics.http_requests.with_label_values(&[method_label(&method), &route, status.as_str()]).inc();
    state.metrics.http_seconds.with_label_values(&[method_label(&method), &route]).observe(seconds);
    let operations = &state.metrics.operations;
    let counter = match response.extensions().get() {
        Some(OtherOperation::Refresh) => Some(&operations.refreshes),
        None => operation_counter(operations, method.as_str(), &route),
    };
    if let Some(counter) = counter {
        counter.with_label_values(&[code.map_or(metrics::OK, ErrorCode::as_str)]).inc();
    }
    if let Some(reason) = reason {
        state.metrics.refusals.with_label_values(&[reason]).inc();
    }
    let reason = reason.unwrap_or_default();
    let class = BoundedClass::of(route_is_limited, limits::is_counted(response.headers()), status);
    if class.is_none_or(|class| lines.admit(class, state.context.since_boot())) {
        span.in_scope(|| {
            tracing::info!(
                method = method_label(&method),
                route,
                client,
                status = status.as_u16(),
                seconds,
                reason,
                "request completed"
            );
        });
    }
    response.headers_mut().insert(REQUEST_ID_HEADER, id);
    response
}

/// The request id that the client sent, if it is well-formed, else a new one.
fn request_id(state: &AppState, request: &Request) -> HeaderValue {
    let is_well_formed = |value: &&HeaderValue| {
        (1..=128).contains(&value.len())
            && value.as_bytes().iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
    };
    let generate = || {
        let id = format!("{:032x}", state.context.new_id(std::convert::identity));
        HeaderValue::from_str(&id).unwrap_or(HeaderValue::from_static("none"))
    };
    request.headers().get(REQUEST_ID_HEADER).filter(is_well_formed).cloned().unwrap_or_else(generate)
}

/// The `method` label. Clients can send any method, so unknown methods share the label `OTHER`.
fn method_label(method: &axum::http::Method) -> &'static str {
    const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    METHODS.into_iter().find(|name| *name == method.as_str()).unwrap_or("OTHER")
}
