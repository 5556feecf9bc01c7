//! Fact 1: a response without a status allows the request, even if it contains a denied response.

use super::{
    ConfigAdditions, Fixture,
    scripted_authorizer::{denied, response},
};
use countersign_proto::envoy::service::auth::v3::{OkHttpResponse, check_response::HttpResponse as EnvoyHttpResponse};
use countersign_tests::{Agent, Environment, Envoy, RawRequest, Sidecar, envoy::replaced, eventually};
use serde_json::json;

#[tokio::test]
async fn only_a_nonzero_status_denies_the_request() {
    let fixture = Fixture::start(ConfigAdditions::default()).await;
    let ok = || EnvoyHttpResponse::OkResponse(OkHttpResponse::default());
    for (name, code, http_response, status) in [
        ("nothing", None, None, 200),
        ("a denied response without a status", None, Some(denied()), 200),
        ("a denied response with status zero", Some(0), Some(denied()), 200),
        ("a denied response with another status", Some(16), Some(denied()), 401),
        ("another status alone", Some(16), None, 403),
        ("another status with an allow", Some(16), Some(ok()), 403),
    ] {
        let received_before = fixture.upstream.received();
        let response = fixture.send_with_response(response(code, http_response), RawRequest::get("/")).await;
        assert_eq!(response.status, status, "{name}: {response:?}");
        assert_eq!(fixture.upstream.received() - received_before, usize::from(status == 200), "{name}");
    }
}

#[tokio::test]
async fn envoy_enforces_every_denial_of_the_sidecar() {
    let mut environment = Environment::start().await;
    let (reader, role) = environment.agent("reader", &["read"]).await;
    let [roleless, suspended, revoked, bound_to_other_service] =
        ["roleless", "suspended", "revoked", "bound to another service"]
            .map(|name| Agent::register(&environment.control, name));
    let (roleless, suspended, revoked, bound_to_other_service) =
        tokio::join!(roleless, suspended, revoked, bound_to_other_service);
    let (other, _) = environment.control.create_service(json!({ "name": "Other" })).await;
    let token = reader.token().await;
    let (roleless_token, suspended_token) = tokio::join!(roleless.token(), suspended.token());
    let (revoked_token, other_service_token) = tokio::join!(revoked.token(), bound_to_other_service.token_for(&other));
    for agent in [&suspended, &revoked] {
        environment.control.assign(&agent.id, &role).await;
    }
    environment.control.set_status(&suspended.id, "suspended").await.expect(200);
    environment.control.set_status(&revoked.id, "revoked").await.expect(200);
    for token in [&suspended_token, &revoked_token] {
        let refused =
            async || Some(environment.sidecar.check_token(token).await).filter(|result| result.reason != "no_role");
        eventually(
            "the sidecar receives the status",
            async || refused().await.filter(|result| result.status != 200),
            || environment.sidecar.log(),
        )
        .await;
    }

    let get = RawRequest::get;
    for (name, request, expected) in [
        ("no token", get("/"), (401, "token_missing")),
        ("no token", get("/admin"), (401, "token_missing")),
        ("text that is not a token", get("/").bearer("root"), (401, "token_malformed")),
        ("text that is not a token", get("/open").bearer("root"), (401, "token_malformed")),
        ("two tokens", get("/").bearer(&token).bearer(&token), (401, "token_repeated")),
        ("a bad signature", get("/").bearer(&tampered(&token)), (401, "token_signature_invalid")),
        ("a token for another service", get("/").bearer(&other_service_token), (401, "token_audience_mismatch")),
        ("no role", get("/").bearer(&roleless_token), (403, "no_role")),
        ("no permission", get("/admin").bearer(&token), (403, "permission_missing")),
        ("a suspended agent", get("/").bearer(&suspended_token), (403, "agent_suspended")),
        ("a revoked agent", get("/").bearer(&revoked_token), (403, "agent_revoked")),
    ] {
        let response = request.send_until_checked(&environment.envoy.listener).await;
        assert_eq!((response.status, response.text("/error/details/reason")), expected, "{name}: {response:?}");
        assert_eq!(response.header("x-agent-reason"), expected.1, "{name}");
    }

    let invalid_rule = |text: String| replaced(&text, "require_permissions: admin", "require_role: admin");
    let envoy =
        Envoy::start_edited_example(&environment.sidecar.socket(), environment.upstream.port, invalid_rule).await;
    let response = get("/admin").bearer(&token).send_until_checked(&envoy.listener).await;
    assert_eq!(response.error(), (503, "SERVICE_UNAVAILABLE", "rule_invalid"));

    let key = environment.control.create_key(environment.control.service(), "sync").await;
    environment.control.kill();
    let sidecar_without_view = Sidecar::start_with(&environment.control, &[&key], &[]);
    sidecar_without_view.client().await;
    let envoy = Envoy::start_example(&sidecar_without_view.socket(), environment.upstream.port).await;
    let response = get("/").bearer(&token).send_until_checked(&envoy.listener).await;
    assert_eq!((response.status, response.header("retry-after")), (503, "1"), "{response:?}");
    assert_ne!(response.header("x-agent-reason"), "");
    assert_eq!(environment.upstream.received(), 0, "Envoy forwarded no request to the service");
}

/// The token with one character of its signature changed.
fn tampered(token: &str) -> String {
    let (signed, signature) = token.rsplit_once('.').unwrap();
    let first = if signature.starts_with('A') { 'B' } else { 'A' };
    format!("{signed}.{first}{}", &signature[1..])
}
