//! Tests the sidecar before it has data (a view), while the control plane is unreachable, and with agents that use the library.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]

use countersign_client::{Session, SessionTokens};
use countersign_tests::{Agent, ControlPlane, Sidecar, eventually, process::free_port};
use jiff::SignedDuration;
use secrecy::ExposeSecret;
use serde_json::json;

/// Sidecars take the time of the control plane from pongs whose round trip was at most this long.
const MAX_ROUND_TRIP: SignedDuration = SignedDuration::from_secs(1);

/// Starts a control plane and a sidecar of its first service. Also returns an agent with a role at that service, and
/// the token of the agent.
async fn start_with_agent() -> (ControlPlane, Sidecar, Agent, String) {
    let control = ControlPlane::start_process().await;
    let sidecar = Sidecar::start(&control).await;
    let (agent, _) = Agent::with_role(&control, "reader", &["read"]).await;
    let token = agent.token().await;
    sidecar.wait_until_accepted(&token).await;
    (control, sidecar, agent, token)
}

#[tokio::test]
async fn sidecar_without_a_view_refuses_with_503() {
    let mut control = ControlPlane::start_process().await;
    let token = Agent::register(&control, "agent").await.token().await;
    let key = control.create_key(control.service(), "sync").await;
    control.kill();
    let sidecar = Sidecar::start_with(&control, &[&key], &[]);
    for result in [sidecar.check(&[]).await, sidecar.check_token(&token).await] {
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
    // The sidecar estimates the control plane's clock. The estimate may be ahead, but by at most one round trip.
    let delay = now().duration_since(expires_at.parse().unwrap());
    assert!(delay > -MAX_ROUND_TRIP, "the assignment expired {delay} too early");
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
    let connected = format!("countersign_authz_stream_connected{{service=\"{service}\"}}");
    assert_eq!(sidecar.metric(&connected).await, Some(1.0));
    assert!(sidecar.metric("countersign_authz_build_info").await.is_some());
    assert_eq!(control.metric("countersign_sync_streams ").await, Some(1.0));
    assert!(sidecar.terminate().await.success());
}

#[tokio::test]
async fn tokens_and_keys_are_not_logged() {
    let (control, sidecar, agent, token) = start_with_agent().await;
    let login = agent.login().await;
    let refresh = login.refresh_token.expose_secret().to_owned();
    agent.api().refresh(&login.refresh_token).await.unwrap();
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

#[expect(clippy::disallowed_methods, reason = "the test and the servers share the machine's clock")]
fn now() -> jiff::Timestamp {
    jiff::Timestamp::now()
}

/// A time at a whole second, at least `seconds` from now.
fn whole_second_after(seconds: i64) -> String {
    jiff::Timestamp::from_second(now().as_second() + seconds + 1).unwrap().to_string()
}

/// The agent has a role at two services, and its last login was for the one that it does not call now.
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
    sidecar.wait_until_accepted(&token(&tokens)).await;
    assert_eq!(token(&session.tokens().await.unwrap()), token(&tokens), "the session uses the new tokens");
    let of_another_task = ask(&default).await.expect("the tokens were requested meanwhile");
    assert_eq!(token(&of_another_task), token(&tokens));
    assert!(ask(&tokens.access_token).await.is_none(), "the service is requested once");
}
