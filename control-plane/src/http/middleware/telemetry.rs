//! Assigns an id to every request, logs the request and counts it.

use super::{
    limits,
    operation_metrics::{RefreshOperation, operation_counter},
    request_lines::{BoundedClass, RequestLogLines},
};
use crate::{
    http::{code::ErrorCode, error::ErrorLabels, request::client_address::ClientAddress, state::AppState},
    metrics,
};
use axum::{
    extract::{MatchedPath, Request},
    http::{HeaderValue, Method},
    response::Response,
};
use std::{sync::Arc, time::Duration};
use tracing::{Instrument, Span};

const REQUEST_ID_HEADER: &str = "x-request-id";

/// The `route` label of requests whose path no route matches.
const UNMATCHED_ROUTE: &str = "unmatched";

/// The id of a request, stored as an extension of the request.
#[derive(Debug, Clone)]
pub struct RequestId(pub String);

/// The status of a request in logs and metrics if its client disconnected before the response. nginx uses the same number.
const CLIENT_DISCONNECTED: u16 = 499;

/// Runs the request in a span with its id, then counts and logs it. [`RequestLogLines`] decides which requests are not logged.
pub async fn record_request(
    state: &AppState,
    log_lines: &Arc<RequestLogLines>,
    mut request: Request,
    next: impl AsyncFnOnce(Request) -> Response,
) -> Response {
    let id = request_id(state, &request);
    request.extensions_mut().insert(RequestId(id.to_str().unwrap_or_default().to_owned()));
    let path = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let client = request.extensions().get::<ClientAddress>().map(|client| client.ip.to_string());
    let record = RequestRecord {
        state,
        log_lines,
        method: request.method().clone(),
        route_is_limited: path.as_deref().map(|path| limits::category(path).is_some()),
        route: path.unwrap_or_else(|| UNMATCHED_ROUTE.to_owned()),
        client: client.unwrap_or_default(),
        started_at: state.context.since_boot(),
        span: tracing::info_span!("request", request_id = %id.to_str().unwrap_or_default()),
        has_response: false,
    };
    let mut response = next(request).instrument(record.span.clone()).await;
    record.complete(&response);
    response.headers_mut().insert(REQUEST_ID_HEADER, id);
    response
}

/// A request in progress. It is counted and logged when its response is known, or when its client disconnects.
struct RequestRecord<'a> {
    state: &'a AppState,
    log_lines: &'a Arc<RequestLogLines>,
    method: Method,
    route: String,
    /// `None` if no route has the path.
    route_is_limited: Option<bool>,
    client: String,
    started_at: Duration,
    span: Span,
    has_response: bool,
}

impl RequestRecord<'_> {
    fn complete(mut self, response: &Response) {
        self.has_response = true;
        let (metrics, method) = (&self.state.metrics, method_label(&self.method));
        let error = response.extensions().get::<ErrorLabels>().copied();
        let (code, reason) = (error.map(|error| error.code), error.and_then(|error| error.reason));
        metrics.http_seconds.with_label_values(&[method, &self.route]).observe(self.elapsed_seconds());
        let counter = match response.extensions().get() {
            Some(RefreshOperation) => Some(&metrics.operations.refreshes),
            None => operation_counter(&metrics.operations, self.method.as_str(), &self.route),
        };
        if let Some(counter) = counter {
            counter.with_label_values(&[code.map_or(metrics::OK, ErrorCode::as_str)]).inc();
        }
        if let Some(reason) = reason {
            metrics.refusals.with_label_values(&[reason]).inc();
        }
        let is_counted = limits::is_counted(response.headers());
        self.record(response.status().as_u16(), is_counted, reason.unwrap_or_default(), "request completed");
    }

    /// Counts the request in the metrics, and logs it unless there are too many lines like it. `is_counted` says whether a rate limit
    /// has counted it.
    fn record(&self, status: u16, is_counted: bool, reason: &str, message: &str) {
        let Self { state, log_lines, method, route, route_is_limited, client, span, .. } = self;
        let method = method_label(method);
        state.metrics.http_requests.with_label_values(&[method, route, &status.to_string()]).inc();
        let class = BoundedClass::of(*route_is_limited, is_counted, status);
        if class.is_none_or(|class| log_lines.admit(class, state.context.since_boot())) {
            let seconds = self.elapsed_seconds();
            span.in_scope(|| tracing::info!(method, route, client, status, seconds, reason, "{message}"));
        }
    }

    fn elapsed_seconds(&self) -> f64 {
        self.state.context.since_boot().saturating_sub(self.started_at).as_secs_f64()
    }
}

impl Drop for RequestRecord<'_> {
    fn drop(&mut self) {
        if !self.has_response {
            // We do not know whether a rate limit has counted the request, so the number of its log lines is bounded.
            self.record(CLIENT_DISCONNECTED, false, "", "client disconnected before the response");
        }
    }
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
fn method_label(method: &Method) -> &'static str {
    const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    METHODS.into_iter().find(|name| *name == method.as_str()).unwrap_or("OTHER")
}
