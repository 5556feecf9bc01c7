//! Facts 2 to 4: headers that the authorizer sets or removes, and headers that it does not receive.

use super::{
    ConfigAdditions, Fixture,
    scripted_authorizer::{allow, minimal_envoy},
};
use countersign_proto::envoy::{
    config::core::v3::{HeaderValue, HeaderValueOption, header_value_option::HeaderAppendAction},
    service::auth::v3::OkHttpResponse,
};
use countersign_tests::{Environment, RawRequest};
use serde_json::{Value, json};

const SIMILAR_NAMES: [&str; 3] = ["x_agent_id", "x-agent_id", "x-agent.id"];
const OVERWRITE: Option<HeaderAppendAction> = Some(HeaderAppendAction::OverwriteIfExistsOrAdd);

#[tokio::test]
async fn headers_are_removed_after_headers_are_set() {
    let fixture = Fixture::start(ConfigAdditions::default()).await;
    let removed = || vec!["x-fact".to_owned()];
    let set_header = || vec![set_x_fact(Some(false), OVERWRITE)];
    for (case, headers, headers_to_remove, expected) in [
        ("neither", vec![], vec![], json!(["client"])),
        ("set", set_header(), vec![], json!(["authorizer"])),
        ("removed", vec![], removed(), Value::Null),
        ("set and removed", set_header(), removed(), Value::Null),
    ] {
        let response = allow(OkHttpResponse { headers, headers_to_remove, ..OkHttpResponse::default() });
        let request = RawRequest::get("/").with("x-fact", "client");
        let received_headers = fixture.send_with_response(response, request).await.expect(200);
        assert_eq!(received_headers["x-fact"], expected, "{case}");
    }
}

#[tokio::test]
async fn set_overwrites_if_either_field_requests_it() {
    let fixture = Fixture::start(ConfigAdditions::default()).await;
    for (case, option) in [
        ("append: false alone", set_x_fact(Some(false), None)),
        ("OVERWRITE_IF_EXISTS_OR_ADD alone", set_x_fact(None, OVERWRITE)),
        ("both, as the sidecar does", set_x_fact(Some(false), OVERWRITE)),
    ] {
        assert_eq!(received_values_of_repeated_header(&fixture, option).await, json!(["authorizer"]), "{case}");
    }
}

#[tokio::test]
async fn envoy_treats_absent_append_as_false() {
    let fixture = Fixture::start(ConfigAdditions::default()).await;
    let (overwritten, appended) = (json!(["authorizer"]), json!(["client,authorizer", "client"]));
    let absent = Some(HeaderAppendAction::AddIfAbsent);
    for (case, option, expected) in [
        ("neither", set_x_fact(None, None), &overwritten),
        ("ADD_IF_ABSENT alone", set_x_fact(None, absent), &overwritten),
        ("ADD_IF_ABSENT with append: false", set_x_fact(Some(false), absent), &overwritten),
        ("append: true", set_x_fact(Some(true), None), &appended),
        ("append: true with OVERWRITE_IF_EXISTS_OR_ADD", set_x_fact(Some(true), OVERWRITE), &appended),
    ] {
        assert_eq!(received_values_of_repeated_header(&fixture, option).await, *expected, "{case}");
    }
}

#[tokio::test]
async fn sidecar_identity_overwrites_client_headers() {
    let environment = Environment::start().await;
    let (agent, _) = environment.agent("reader", &["read"]).await;
    let token = agent.token().await;
    let minimal =
        minimal_envoy(&environment.sidecar.socket(), environment.upstream.port, ConfigAdditions::default()).await;
    let get = || RawRequest::get("/").bearer(&token);
    for (case, request) in [
        ("none sent", get()),
        ("one sent", get().with("x-agent-id", "agt_forged")),
        ("two sent", get().with("x-agent-id", "agt_forged").with("X-Agent-Id", "agt_other")),
        ("the real one and a forged one", get().with("x-agent-id", &agent.id).with("x-agent-id", "agt_forged")),
        ("an empty one", get().with("x-agent-id", "")),
    ] {
        for (envoy, listener) in
            [("the minimal Envoy", &minimal.listener), ("the example Envoy", &environment.envoy.listener)]
        {
            let received_headers = request.send_until_checked(listener).await.expect(200);
            assert_eq!(received_headers["x-agent-id"], json!([agent.id]), "{case}, {envoy}");
        }
    }
}

#[tokio::test]
async fn similar_header_names_reach_the_service_unless_removed() {
    let fixture = Fixture::start(ConfigAdditions::default()).await;
    for name in SIMILAR_NAMES {
        let received_headers = fixture.send_allowed(RawRequest::get("/").with(name, "forged")).await.expect(200);
        assert_eq!(received_headers[name], json!(["forged"]), "{name}");
        assert_eq!(fixture.authorizer.last_request().headers[name], "forged", "{name}");
    }
}

#[tokio::test]
async fn rejecting_underscores_does_not_reject_dots() {
    let reject = "common_http_protocol_options: { headers_with_underscores_action: REJECT_REQUEST }";
    let fixture = Fixture::start(ConfigAdditions { connection_manager: reject, ..ConfigAdditions::default() }).await;
    for (name, status) in SIMILAR_NAMES.into_iter().zip([400, 400, 200]) {
        let response = fixture.send_allowed(RawRequest::get("/").with(name, "forged")).await;
        assert_eq!(response.status, status, "{name}: {response:?}");
    }
    assert_eq!(
        (fixture.authorizer.check_count(), fixture.upstream.received()),
        (1, 1),
        "only the name with the dot reaches the service"
    );
}

#[tokio::test]
async fn allowed_headers_hides_similar_names_from_the_authorizer_only() {
    let filter = "allowed_headers: { patterns: [{ exact: authorization }] }";
    let fixture = Fixture::start(ConfigAdditions { filter, ..ConfigAdditions::default() }).await;
    for name in SIMILAR_NAMES {
        let request = RawRequest::get("/").bearer("token").with(name, "forged");
        let received_headers = fixture.send_allowed(request).await.expect(200);
        assert_eq!(received_headers[name], json!(["forged"]), "{name}");
        let checked_headers = fixture.authorizer.last_request().headers;
        assert_eq!(checked_headers["authorization"], "Bearer token", "{name}");
        assert_eq!(checked_headers.get(name), None, "{name}");
    }
}

/// The values that the service receives of a header that the client sends twice.
async fn received_values_of_repeated_header(fixture: &Fixture, option: HeaderValueOption) -> Value {
    let response = allow(OkHttpResponse { headers: vec![option], ..OkHttpResponse::default() });
    let request = RawRequest::get("/").with("x-fact", "client").with("x-fact", "client");
    fixture.send_with_response(response, request).await.expect(200)["x-fact"].clone()
}

/// An option that sets the header `x-fact`. A parameter that is `None` is not sent to Envoy.
#[expect(deprecated, reason = "older Envoys read `append` only")]
fn set_x_fact(append: Option<bool>, action: Option<HeaderAppendAction>) -> HeaderValueOption {
    let header = HeaderValue { key: "x-fact".into(), value: "authorizer".into(), ..HeaderValue::default() };
    HeaderValueOption {
        header: Some(header),
        append,
        append_action: action.unwrap_or_default().into(),
        ..HeaderValueOption::default()
    }
}
