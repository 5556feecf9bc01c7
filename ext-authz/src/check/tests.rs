//! Tests of `Authorizer::check`, from the `CheckRequest` to the `CheckResponse`.

mod costs;
mod fuzz;
mod mcp_rules;

use super::*;
use crate::{
    fixtures::{ISSUED_AT, SERVICE_ID, TOKEN_REVISION, TestIssuer, claims},
    response::HeaderNames,
    view::{
        ApiKeyIndex, View,
        tests::{confirmed, header, view as snapshot_view},
    },
};
use countersign_identity::Timestamp;
use countersign_proto::envoy::{
    config::core::v3::{HeaderMap, HeaderValue},
    service::auth::v3::{
        AttributeContext, CheckRequest, CheckResponse, OkHttpResponse,
        attribute_context::{self, HttpRequest},
        check_response::HttpResponse,
    },
};
use prost::Message;

struct FixedClock;

impl Clock for FixedClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_seconds(ISSUED_AT + 60)
    }

    fn since_boot(&self) -> Duration {
        Duration::from_secs(1000)
    }
}

/// A clock that panics when its wall-clock time is read.
struct PanickingClock;

impl Clock for PanickingClock {
    fn now(&self) -> Timestamp {
        panic!("the test reads the wall clock")
    }

    fn since_boot(&self) -> Duration {
        Duration::from_secs(1000)
    }
}

fn view() -> Arc<View> {
    Arc::new(confirmed(&snapshot_view(TOKEN_REVISION, header()), FixedClock.since_boot()))
}

fn authorizer(clock: impl Clock) -> Authorizer {
    let metrics = Arc::new(Metrics::new().unwrap());
    metrics.init_service(SERVICE_ID);
    let views = Arc::new(Views::new(1, None));
    views.publish(ApiKeyIndex(0), &view());
    Authorizer {
        views,
        rules: Arc::default(),
        policies: PolicyCache::default(),
        cache: VerifiedTokens::new(10, metrics.cache_hits.clone(), metrics.cache_misses.clone()),
        responses: ResponseBuilder { names: HeaderNames::new("x-agent-"), explain_denials: false },
        metrics,
        clock: Arc::new(clock),
        last_extension_warning: AtomicU64::default(),
    }
}

fn request(headers: &[(&str, &str)], extensions: &[(&str, &str)]) -> CheckRequest {
    let to_map =
        |pairs: &[(&str, &str)]| pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    check_request(HttpRequest { headers: to_map(headers), ..HttpRequest::default() }, to_map(extensions))
}

fn check_request(http: HttpRequest, extensions: std::collections::HashMap<String, String>) -> CheckRequest {
    let request = attribute_context::Request { http: Some(http), ..attribute_context::Request::default() };
    let attributes =
        AttributeContext { request: Some(request), context_extensions: extensions, ..AttributeContext::default() };
    CheckRequest { attributes: Some(attributes) }
}

#[expect(clippy::needless_pass_by_value, reason = "most callers create the request in the call")]
fn check(authorizer: &Authorizer, request: CheckRequest) -> CheckResponse {
    authorizer.check(&decoded(&request))
}

/// The request as the sidecar decodes it.
fn decoded(request: &CheckRequest) -> super::CheckRequest {
    super::CheckRequest::decode(&request.encode_to_vec()[..]).unwrap()
}

fn expect_allowed(response: CheckResponse) -> OkHttpResponse {
    assert_eq!(response.status.unwrap().code, 0);
    match response.http_response {
        Some(HttpResponse::OkResponse(ok_response)) => ok_response,
        other => panic!("{other:?}"),
    }
}

/// Returns the HTTP status and the reason of a denial.
fn expect_denied(response: CheckResponse) -> (i32, String) {
    assert_ne!(response.status.unwrap().code, 0);
    let Some(HttpResponse::DeniedResponse(denied)) = response.http_response else {
        panic!("the response is not a denial")
    };
    let headers = denied.headers.into_iter().filter_map(|option| option.header);
    let reason = headers.into_iter().find(|header| header.key == "x-agent-reason").unwrap().value;
    (denied.status.unwrap().code, reason)
}

#[test]
fn removes_token_header_unless_the_route_forwards_it() {
    let authorizer = authorizer(FixedClock);
    let bearer = format!("Bearer {}", TestIssuer::new(1).sign(&claims()));
    let ok_response =
        expect_allowed(check(&authorizer, request(&[("authorization", &bearer), ("x_agent_id", "root")], &[])));
    assert_eq!(ok_response.headers_to_remove, ["authorization", "x_agent_id"]);
    assert_eq!(ok_response.headers.len(), 7);
    let both = [("authorization", "Basic dXNlcg=="), ("x-agent-token", bearer.as_str())];
    assert_eq!(expect_allowed(check(&authorizer, request(&both, &[]))).headers_to_remove, ["x-agent-token"]);
    let forwarded = request(&both, &[("forward_token", "true")]);
    assert!(expect_allowed(check(&authorizer, forwarded)).headers_to_remove.is_empty());
}

#[test]
fn invalid_requests_are_denied_without_a_grpc_error() {
    let authorizer = authorizer(FixedClock);
    let denial = |reason: &str| (503, reason.to_owned());
    assert_eq!(expect_denied(check(&authorizer, CheckRequest::default())), denial("request_invalid"));
    let invalid_extension = request(&[], &[("require_role", "reader")]);
    assert_eq!(expect_denied(check(&authorizer, invalid_extension)), denial("rule_invalid"));
    let names: Vec<_> = (0..=MAX_EXTENSIONS).map(|number| number.to_string()).collect();
    let many: Vec<_> = names.iter().map(|name| (name.as_str(), "")).collect();
    assert_eq!(expect_denied(check(&authorizer, request(&[], &many))), denial("rule_invalid"));
    let unknown_service = countersign_identity::ServiceId::from_bits(9).to_string();
    let unknown = request(&[], &[("service_id", &unknown_service)]);
    assert_eq!(expect_denied(check(&authorizer, unknown)), denial("service_unknown"));
    assert_eq!(expect_denied(check(&authorizer, request(&[], &[]))), (401, "token_missing".into()));
}

#[test]
fn panic_in_a_check_is_a_denial() {
    let response = check(&authorizer(PanickingClock), request(&[], &[]));
    assert_eq!(expect_denied(response), (503, "internal".into()));
}

#[test]
fn every_verdict_has_a_counter_that_starts_at_zero() {
    let authorizer = authorizer(FixedClock);
    check(&authorizer, request(&[], &[]));
    let text = prometheus::TextEncoder::new().encode_to_string(&authorizer.metrics.registry.gather()).unwrap();
    let line = |reason: &str, count: u32| {
        format!(r#"countersign_authz_checks_total{{decision="deny",reason="{reason}",service="{SERVICE_ID}"}} {count}"#)
    };
    assert!(text.contains(&line("token_missing", 1)), "{text}");
    assert!(text.contains(&line("token_revoked", 0)), "{text}");
}
