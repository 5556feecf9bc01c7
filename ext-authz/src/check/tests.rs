//! Whole questions, whole answers.

mod fuzz;

use super::*;
use crate::{
    fixtures::{ISSUED, ISSUER, REV, SERVICE, Signer, claims, reader},
    view::{Confirmation, Slot, Snapshot, Terms},
};
use countersign_identity::{KeySet, Revision, Timestamp};
use envoy_types::{
    ext_authz::v3::pb::{HttpResponse, OkHttpResponse},
    pb::envoy::{
        config::core::v3::{HeaderMap, HeaderValue},
        service::auth::v3::attribute_context,
    },
};

struct Still;

impl Clock for Still {
    fn now(&self) -> Timestamp {
        Timestamp::from_seconds(ISSUED + 60)
    }

    fn since_boot(&self) -> Duration {
        Duration::from_secs(1000)
    }
}

/// A clock that breaks as soon as a token has to be judged.
struct Broken;

impl Clock for Broken {
    fn now(&self) -> Timestamp {
        panic!("no wall clock")
    }

    fn since_boot(&self) -> Duration {
        Duration::from_secs(1000)
    }
}

fn view() -> Arc<View> {
    let snapshot = Snapshot {
        revision: Revision::new(REV),
        floor: Revision::new(1),
        terms: Terms {
            service: SERVICE,
            issuer: ISSUER.into(),
            accepts_unbound: true,
            max_staleness: Duration::from_mins(1),
        },
        keys: KeySet::from_points([Signer::new(1).point()]).unwrap(),
        roles: [reader()].into_iter().collect(),
        agents: vec![],
        revoked: vec![],
    };
    let (revision, floor) = (Revision::new(REV), Revision::new(1));
    Arc::new(View::of(snapshot, None).confirm(Confirmation { revision, floor, asked_at: Still.since_boot() }))
}

fn authorizer(clock: impl Clock) -> Authorizer {
    let metrics = Arc::new(Metrics::new().unwrap());
    metrics.service_known(SERVICE);
    let views = Arc::new(Views::new(1, None));
    views.publish(Slot(0), &view());
    Authorizer {
        views,
        cache: TokenCache::new(10, metrics.cache_hits(), metrics.cache_misses()),
        names: Names::new("x-agent-"),
        metrics,
        clock: Arc::new(clock),
        complaints: Complaints::default(),
    }
}

fn request(headers: &[(&str, &str)], rules: &[(&str, &str)]) -> CheckRequest {
    let owned = |pairs: &[(&str, &str)]| pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
    question(HttpRequest { headers: owned(headers), ..HttpRequest::default() }, owned(rules))
}

fn question(http: HttpRequest, rules: std::collections::HashMap<String, String>) -> CheckRequest {
    let request = attribute_context::Request { http: Some(http), ..attribute_context::Request::default() };
    let attributes =
        AttributeContext { request: Some(request), context_extensions: rules, ..AttributeContext::default() };
    CheckRequest { attributes: Some(attributes) }
}

async fn ask(authorizer: &Authorizer, question: CheckRequest) -> CheckResponse {
    authorizer.check(Request::new(question)).await.unwrap().into_inner()
}

fn allowed(response: CheckResponse) -> OkHttpResponse {
    assert_eq!(response.status.unwrap().code, 0);
    match response.http_response {
        Some(HttpResponse::OkResponse(ok)) => ok,
        other => panic!("{other:?}"),
    }
}

/// The HTTP status and the reason of a denial.
fn denied(response: CheckResponse) -> (i32, String) {
    assert_ne!(response.status.unwrap().code, 0);
    let Some(HttpResponse::DeniedResponse(denied)) = response.http_response else { panic!("denied") };
    let headers = denied.headers.into_iter().filter_map(|option| option.header);
    let reason = headers.into_iter().find(|header| header.key == "x-agent-reason").unwrap().value;
    (denied.status.unwrap().code, reason)
}

#[tokio::test]
async fn the_token_that_was_used_is_taken_out_unless_the_route_keeps_it() {
    let authorizer = authorizer(Still);
    let bearer = format!("Bearer {}", Signer::new(1).sign(&claims()));
    let ok = allowed(ask(&authorizer, request(&[("authorization", &bearer), ("x_agent_id", "root")], &[])).await);
    assert_eq!(ok.headers_to_remove, ["authorization", "x_agent_id"]);
    assert_eq!(ok.headers.len(), 7);
    let both = [("authorization", "Basic dXNlcg=="), ("x-agent-token", bearer.as_str())];
    assert_eq!(allowed(ask(&authorizer, request(&both, &[])).await).headers_to_remove, ["x-agent-token"]);
    let kept = request(&both, &[("forward_token", "true")]);
    assert!(allowed(ask(&authorizer, kept).await).headers_to_remove.is_empty());
}

#[tokio::test]
async fn raw_headers_are_read_too() {
    let bearer = format!("Bearer {}", Signer::new(1).sign(&claims()));
    let raw = |key: &str, value: &str| HeaderValue { key: key.into(), raw_value: value.into(), value: String::new() };
    let headers = vec![raw("authorization", &bearer), raw("x-agent.id", "root")];
    let http = HttpRequest { header_map: Some(HeaderMap { headers }), ..HttpRequest::default() };
    let ok = allowed(ask(&authorizer(Still), question(http, [].into())).await);
    assert_eq!(ok.headers_to_remove, ["authorization", "x-agent.id"]);
}

#[tokio::test]
async fn what_cannot_be_judged_is_denied_and_never_a_grpc_error() {
    let authorizer = authorizer(Still);
    let denial = |reason: &str| (503, reason.to_owned());
    assert_eq!(denied(ask(&authorizer, CheckRequest::default()).await), denial("request_invalid"));
    let rule = request(&[], &[("require_role", "reader")]);
    assert_eq!(denied(ask(&authorizer, rule).await), denial("rule_invalid"));
    let other = countersign_identity::ServiceId::from_bits(9).to_string();
    let unknown = request(&[], &[("service_id", &other)]);
    assert_eq!(denied(ask(&authorizer, unknown).await), denial("service_unknown"));
    assert_eq!(denied(ask(&authorizer, request(&[], &[])).await), (401, "token_missing".into()));
}

#[tokio::test]
async fn a_panic_is_a_denial() {
    let response = ask(&authorizer(Broken), request(&[], &[])).await;
    assert_eq!(denied(response), (503, "internal".into()));
}

#[tokio::test]
async fn verdicts_are_counted_from_zero() {
    let authorizer = authorizer(Still);
    ask(&authorizer, request(&[], &[])).await;
    let text = prometheus::TextEncoder::new().encode_to_string(&authorizer.metrics.registry().gather()).unwrap();
    let line = |reason: &str, count: u32| {
        format!(r#"countersign_authz_checks_total{{decision="deny",reason="{reason}",service="{SERVICE}"}} {count}"#)
    };
    assert!(text.contains(&line("token_missing", 1)), "{text}");
    assert!(text.contains(&line("token_revoked", 0)), "{text}");
}
