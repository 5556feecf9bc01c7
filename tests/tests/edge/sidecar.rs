//! The sidecar before its first view of the control plane's data, without a connection to the control plane, and after
//! reconnecting.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]

use countersign_client::{Session, SessionTokens};
use countersign_proto::envoy::service::auth::v3::CheckRequest;
use countersign_tests::{
    Agent, ControlPlane, HttpResponse, Sidecar, eventually,
    process::free_port,
    sidecar::{CheckResult, check_request},
};
use jiff::SignedDuration;
use secrecy::ExposeSecret;
use serde_json::json;

/// A pong that takes longer does not set the clock of a sidecar.
const MAX_ROUND_TRIP: SignedDuration = SignedDuration::from_secs(1);

/// Starts a control plane and a sidecar of its first service. Also returns an agent with a role at that service, and
/// the token of the agent.
async fn start_with_agent() -> (ControlPlane, Sidecar, Agent, String) {
    start_with_agent_and_settings(&[]).await
}

async fn start_with_agent_and_settings(settings: &[&str]) -> (ControlPlane, Sidecar, Agent, String) {
    let control = ControlPlane::start_process_with(settings).await;
    let sidecar = Sidecar::start(&control).await;
    let agent = Agent::register(&control, "agent").await;
    let role = control.create_role("reader", &["read"]).await;
    control.assign(&agent.id, &role).await;
    let token = agent.token().await;
    wait_until_accepted(&sidecar, &token).await;
    (control, sidecar, agent, token)
}

/// Waits until the sidecar accepts the token.
async fn wait_until_accepted(sidecar: &Sidecar, token: &str) -> CheckResult {
    let accepted = async || Some(sidecar.check_token(token).await).filter(|result| result.status == 200);
    eventually("the token is accepted", accepted, || sidecar.log()).await
}

/// Waits until the sidecar refuses the token. Returns status and reason.
async fn wait_until_refused(sidecar: &Sidecar, token: &str) -> (u16, String) {
    let refused = async || Some(sidecar.check_token(token).await).filter(|result| result.status != 200);
    let result = eventually("the token is refused", refused, || sidecar.log()).await;
    (result.status, result.reason)
}

#[tokio::test]
async fn sidecar_without_a_view_refuses_with_503() {
    let mut control = ControlPlane::start_process().await;
    let agent = Agent::register(&control, "agent").await;
    let token = agent.token().await;
    let key = control.create_key(control.service(), "sync").await;
    control.kill();
    let sidecar = Sidecar::start_with(&control, &[&key], &[]);
    for headers in [vec![], vec![("authorization", format!("Bearer {token}"))]] {
        let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let result = sidecar.check(&headers).await;
        assert_eq!((result.status, result.reason.as_str()), (503, "view_missing"));
        assert_eq!(result.headers["retry-after"], "1");
    }
    assert_eq!(sidecar.admin.get("/readyz").await.status, 503);
    assert_eq!(sidecar.admin.get("/livez").await.status, 200);

    control.restart().await;
    sidecar.wait_until_ready().await;
    let result =
        sidecar.check_with(&[("authorization", &format!("Bearer {token}"))], &[("allow_unassigned", "true")]).await;
    assert_eq!(result.status, 200, "{}", result.reason);
}

#[tokio::test]
async fn disconnected_sidecar_allows_requests_until_its_view_is_stale() {
    let (mut control, sidecar, _, token) = start_with_agent_and_settings(&["sync.max_staleness_seconds=3"]).await;
    control.kill();
    assert_eq!(sidecar.check_token(&token).await.status, 200, "the view is not stale yet");
    assert_eq!(wait_until_refused(&sidecar, &token).await, (503, "view_stale".into()));
    control.restart().await;
    wait_until_accepted(&sidecar, &token).await;
}

#[tokio::test]
async fn sidecar_applies_status_changes_and_revocation_is_final() {
    let (control, sidecar, agent, token) = start_with_agent().await;
    control.set_status(&agent.id, "suspended").await.expect(200);
    assert_eq!(wait_until_refused(&sidecar, &token).await, (403, "agent_suspended".into()));

    control.set_status(&agent.id, "active").await.expect(200);
    let reactivated =
        async || Some(sidecar.check_token(&token).await).filter(|result| result.reason != "agent_suspended");
    let result = eventually("the sidecar receives the reactivation", reactivated, || sidecar.log()).await;
    assert_eq!(
        (result.status, result.reason.as_str()),
        (401, "token_revoked"),
        "tokens issued before the suspension stay revoked"
    );
    let new_token = agent.token().await;
    wait_until_accepted(&sidecar, &new_token).await;

    control.set_status(&agent.id, "revoked").await.expect(200);
    assert_eq!(wait_until_refused(&sidecar, &new_token).await, (403, "agent_revoked".into()));
    let reactivation = control.set_status(&agent.id, "active").await;
    assert_eq!((reactivation.status, reactivation.text("/error/code")), (409, "CONFLICT"));
}

#[tokio::test]
async fn refresh_token_reuse_revokes_access_tokens_of_its_session() {
    let (control, sidecar, agent, _) = start_with_agent().await;
    let login = agent.login().await;
    let refreshed = agent.api().refresh(&login).await.unwrap();
    let token = secrecy::ExposeSecret::expose_secret(&refreshed.access_token).to_owned();
    wait_until_accepted(&sidecar, &token).await;
    let reuse_error = agent.api().refresh(&login).await.unwrap_err().to_string();
    assert!(reuse_error.starts_with("401 AUTHENTICATION_FAILED"), "{reuse_error}");
    assert_eq!(wait_until_refused(&sidecar, &token).await, (401, "token_revoked".into()));
    control.verify(&token).await.expect(401);
}

#[tokio::test]
async fn deletion_of_the_service_refuses_all_its_tokens() {
    let (control, sidecar, agent, _) = start_with_agent().await;
    let token = agent.token().await;
    wait_until_accepted(&sidecar, &token).await;
    control.api.send_as(control.human(), "DELETE", &control.path(""), json!({})).await.expect(200);
    // The stream of the sidecar ends with the deletion, so the keys in its view must be gone, and not only be outdated.
    assert_eq!(wait_until_refused(&sidecar, &token).await, (401, "token_key_unknown".into()));
}

#[tokio::test]
async fn token_does_not_grant_a_newer_role_of_the_same_name() {
    let (control, sidecar, _, token) = start_with_agent().await;
    let other = Agent::register(&control, "other").await;
    let earlier_token = other.token_for(control.service()).await;
    let role = control.create_role("late", &["late"]).await;
    control.assign(&other.id, &role).await;
    let result = wait_until_accepted(&sidecar, &earlier_token).await;
    assert_eq!(result.headers["x-agent-roles"], "late", "the agent record is newer than the token");
    assert_eq!(wait_until_accepted(&sidecar, &token).await.headers["x-agent-roles"], "reader");
}

#[tokio::test]
async fn assignment_expires_while_the_control_plane_is_down() {
    let (mut control, sidecar, agent, _) = start_with_agent().await;
    let role = control.create_role("visitor", &["visit"]).await;
    let expires_at = whole_second_after(8);
    control.assign_until(&agent.id, &role, Some(expires_at.clone())).await;
    let token = agent.token().await;
    let wait_for_roles = async |expected: &str| {
        let matching_roles = async || {
            sidecar.check_token(&token).await.headers.remove("x-agent-roles").filter(|roles| roles == expected)
        };
        eventually("the sidecar applies the change of roles", matching_roles, || sidecar.log()).await
    };
    wait_for_roles("reader,visitor").await;
    control.kill();
    wait_for_roles("reader").await;
    // The sidecar takes the clock of the control plane to be later than it is, by one round trip at most.
    let delay = now().duration_since(expires_at.parse().unwrap());
    assert!(delay > -MAX_ROUND_TRIP, "the assignment expired {delay} too early");
}

#[tokio::test]
async fn one_sidecar_serves_several_services_separately() {
    let control = ControlPlane::start_process().await;
    let (other, other_key) = control.create_service(json!({ "name": "other" })).await;
    let agent = Agent::register(&control, "agent").await;
    let role = control.create_role("reader", &["read"]).await;
    control.assign(&agent.id, &role).await;
    let token = agent.token().await;
    let sidecar = Sidecar::start_with(&control, &[control.key(), &other_key], &[]);
    sidecar.wait_until_ready().await;
    let bearer = format!("Bearer {token}");
    let check = async |extensions: &[(&str, &str)]| {
        let result = sidecar.check_with(&[("authorization", &bearer)], extensions).await;
        (result.status, result.reason)
    };
    assert_eq!(check(&[("service_id", control.service())]).await, (200, String::new()));
    assert_eq!(check(&[("service_id", &other)]).await, (401, "token_audience_mismatch".into()));
    assert_eq!(check(&[("service_id", "svc_unknown")]).await.0, 503);
    assert_eq!(check(&[]).await.0, 503, "a sidecar of several services has no default service");
}

/// Context extensions and the expected outcome.
type Case = (&'static [(&'static str, &'static str)], (u16, &'static str));

#[tokio::test]
async fn route_rules_apply_and_unknown_rules_are_refused() {
    let (_control, sidecar, _, token) = start_with_agent().await;
    let bearer = format!("Bearer {token}");
    let cases: [Case; 12] = [
        (&[("require_roles", "reader")], (200, "")),
        (&[("require_roles", "reader,writer")], (403, "role_missing")),
        (&[("require_permissions", "read")], (200, "")),
        (&[("require_permissions", "write")], (403, "permission_missing")),
        (&[("min_trust_score", "50")], (200, "")),
        (&[("min_trust_score", "50.01")], (403, "trust_too_low")),
        (&[("min_trust_score", "plenty")], (503, "rule_invalid")),
        (&[("min_trust_score", "NaN")], (503, "rule_invalid")),
        (&[("allow_anonymous", "yes")], (503, "rule_invalid")),
        (&[("require_role", "reader")], (503, "rule_invalid")),
        (&[("allow_unassigned", "true")], (200, "")),
        (&[("forward_token", "true")], (200, "")),
    ];
    for (extensions, expected) in cases {
        let result = sidecar.check_with(&[("authorization", &bearer)], extensions).await;
        assert_eq!((result.status, result.reason.as_str()), expected, "{extensions:?}");
    }
}

#[tokio::test]
async fn check_without_http_request_is_denied() {
    let (_control, sidecar, _, _) = start_with_agent().await;
    let mut without_http = check_request(&[], &[]);
    without_http.attributes.as_mut().unwrap().request.as_mut().unwrap().http = None;
    for (name, request) in [("empty", CheckRequest::default()), ("without http", without_http)] {
        let response = sidecar.client().await.check(request).await.unwrap().into_inner();
        let result = CheckResult::from_response(response);
        assert_eq!((result.status, result.reason.as_str()), (503, "request_invalid"), "{name}");
    }
}

#[tokio::test]
async fn sidecar_listens_on_tcp_reports_metrics_and_stops_gracefully() {
    let control = ControlPlane::start_process().await;
    let listen = format!("listen.grpc=127.0.0.1:{}", free_port());
    let mut sidecar = Sidecar::start_with(&control, &[control.key()], &[&listen]);
    sidecar.wait_until_ready().await;
    assert_eq!(sidecar.check(&[]).await.reason, "token_missing");
    let service = control.service();
    let counter =
        format!("countersign_authz_checks_total{{decision=\"deny\",reason=\"token_missing\",service=\"{service}\"}}");
    assert_eq!(sidecar.metric(&counter).await, Some(1.0), "{}", sidecar.admin.get("/metrics").await.body);
    assert_eq!(
        sidecar.metric(&format!("countersign_authz_stream_connected{{service=\"{service}\"}}")).await,
        Some(1.0)
    );
    assert!(sidecar.metric("countersign_authz_build_info").await.is_some());
    let metrics = HttpResponse::send(metrics_request(&control)).await.body;
    assert!(metrics.as_str().unwrap().contains("countersign_sync_streams 1"), "{metrics}");
    assert!(sidecar.terminate().await.success());
}

#[tokio::test]
async fn tokens_and_keys_are_not_logged() {
    let (control, sidecar, agent, token) = start_with_agent().await;
    let login = agent.login().await;
    let refresh = secrecy::ExposeSecret::expose_secret(&login.refresh_token).to_owned();
    agent.api().refresh(&login).await.unwrap();
    let tampered_token = format!("{}x", &token[..token.len() - 1]);
    sidecar.check_token(&tampered_token).await;
    control.verify(&tampered_token).await.expect(401);
    let log = format!("{}{}", control.log(), sidecar.log());
    assert!(log.contains("refresh") && log.contains(control.env["URL"].as_str()), "requests and the URL are logged");
    let signature = token.rsplit('.').next().unwrap();
    for secret in [token.as_str(), signature, &refresh[30..], &control.key()[33..], control.human()] {
        assert!(!log.contains(secret), "{secret} is in the log");
    }
}

fn metrics_request(control: &ControlPlane) -> reqwest::RequestBuilder {
    reqwest::Client::new().get(format!("{}/metrics", control.env["ADMIN_URL"]))
}

#[expect(clippy::disallowed_methods, reason = "the test and the servers share the machine's clock")]
fn now() -> jiff::Timestamp {
    jiff::Timestamp::now()
}

/// A time at a whole second, at least `seconds` from now.
fn whole_second_after(seconds: i64) -> String {
    jiff::Timestamp::from_second(now().as_second() + seconds + 1).unwrap().to_string()
}

#[tokio::test]
async fn refusal_of_a_token_for_another_service_names_the_required_service() {
    let control = ControlPlane::shared().await;
    let sidecar = Sidecar::start(&control).await;
    let (other, _) = control.create_service(json!({ "name": "other" })).await;
    let agent = Agent::register(&control, "Agent").await;
    let result = sidecar.check_token(&agent.token_for(&other).await).await;
    let required = json!({ "serviceId": control.service() });
    assert_eq!(result.details(), json!({ "reason": "token_audience_mismatch", "required": required }));
}

/// The agent has a role at two services, and its last login was for the other one.
#[tokio::test]
async fn library_requests_a_token_for_the_service_that_refused_the_default() {
    let (control, _, agent, _) = start_with_agent().await;
    let (other, key) = control.create_service(json!({ "name": "other" })).await;
    let session = Session::new(agent.api().clone(), agent.key, agent.id.clone(), None);
    let token = |tokens: &SessionTokens| tokens.access_token.expose_secret().to_owned();
    let default = session.tokens().await.unwrap().access_token;
    let body = json!({ "name": "reader", "permissions": ["read"] });
    let role = control.api.send_as(&key, "POST", &format!("/services/{other}/roles"), body).await.expect(201);
    let path = format!("/services/{other}/agents/{}/roles", agent.id);
    control.api.send_as(&key, "POST", &path, json!({ "roleId": role["roleId"] })).await.expect(200);
    let sidecar = Sidecar::start_with(&control, &[&key], &[]);
    sidecar.wait_until_ready().await;

    let refused = sidecar.check_token(default.expose_secret()).await;
    assert_eq!(refused.reason, "token_audience_mismatch");
    let refusal = json!({ "error": { "details": refused.details() } });
    let elsewhere = session.tokens_after_refusal(&default, &refusal, control.service()).await.unwrap();
    assert!(elsewhere.is_none(), "the refusal names another service than the caller");
    let ask = async |refused_token| session.tokens_after_refusal(refused_token, &refusal, &other).await.unwrap();
    let tokens = ask(&default).await.expect("the refusal names the service");
    wait_until_accepted(&sidecar, &token(&tokens)).await;
    assert_eq!(token(&session.tokens().await.unwrap()), token(&tokens), "the session uses the new tokens");
    let of_another_task = ask(&default).await.expect("the tokens were requested meanwhile");
    assert_eq!(token(&of_another_task), token(&tokens));
    assert!(ask(&tokens.access_token).await.is_none(), "the service is requested once");
}
