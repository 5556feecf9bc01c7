//! Tests of unbound tokens: every service sees its own current roles, at the API and at the sidecar.

use super::fixture::{Fixture, accepted, refused, seconds_from_now};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use countersign_tests::{
    Agent, Verifiers, VerifyOutcome, agent::log_in_at, control_plane::text, jwt, oauth::log_in, sidecar::CheckResult,
};
use serde_json::{Value, json};

/// The length of an entry in the claim `grants`, in bytes.
const ENTRY_LEN: usize = 13;

/// An agent with the role `reader` at the first service and `writer` at the second. The sidecar knows the roles.
async fn agent_with_roles(fixture: &Fixture) -> (Agent, String) {
    let agent = fixture.register_agent("Agent").await;
    let before = agent.token().await;
    let role = fixture.control.create_role("reader", &["read"]).await;
    fixture.control.assign(&agent.id, &role).await;
    fixture.assign_at(&fixture.second, &agent, "writer", &["write"]).await;
    expect(fixture.verifiers(), "before the login", &agent, &before, &["reader"], &["read"]).await;
    let second = fixture.verifiers_of(&fixture.second);
    expect(second, "before the login", &agent, &before, &["writer"], &["write"]).await;
    (agent, role)
}

/// Logs in with the fields of the specification only. None of them names a service.
async fn log_in_by_specification(fixture: &Fixture, agent: &Agent) -> Value {
    log_in_at(&fixture.control.api, &agent.id, &agent.key).await
}

async fn expect(
    verifiers: Verifiers<'_>,
    case: &str,
    agent: &Agent,
    token: &str,
    roles: &[&str],
    permissions: &[&str],
) {
    verifiers.wait_until_equal(case, token, accepted(agent, "Agent", roles, permissions)).await;
}

/// Verifies a token once: the first answers must be right.
async fn expect_at_once(verifiers: Verifiers<'_>, agent: &Agent, token: &str, roles: &[&str], permissions: &[&str]) {
    let outcomes = verifiers.verify(token).await;
    let is_expected = accepted(agent, "Agent", roles, permissions);
    assert!(is_expected(&outcomes.0) && is_expected(&outcomes.1), "{outcomes:?}");
}

/// The answer of the sidecar on a route that requires any role.
async fn check_with_role(fixture: &Fixture, service: &str, token: &str) -> CheckResult {
    let authorization = format!("Bearer {token}");
    fixture.sidecar.check_with(&[("authorization", authorization.as_str())], &[("service_id", service)]).await
}

#[tokio::test]
async fn client_that_knows_only_the_specification_has_its_roles_at_every_service() {
    let fixture = Fixture::start().await;
    let (first, second) = (fixture.verifiers(), fixture.verifiers_of(&fixture.second));
    let (agent, role) = agent_with_roles(&fixture).await;
    let tokens = log_in_by_specification(&fixture, &agent).await;
    let token = text(&tokens["accessToken"]);
    assert_eq!(jwt::claims(&token)["aud"], fixture.control.env["URL"], "the token is unbound");
    expect_at_once(first, &agent, &token, &["reader"], &["read"]).await;
    expect_at_once(second, &agent, &token, &["writer"], &["write"]).await;
    assert_eq!(check_with_role(&fixture, first.service, &token).await.status, 200);

    let body = json!({ "refreshToken": tokens["refreshToken"] });
    let refreshed = text(&fixture.control.api.post("/auth/refresh", body).await.expect(200)["accessToken"]);
    let of_oauth = text(&log_in(&fixture.control, &agent, &[]).await.expect(200)["access_token"]);
    for token in [&refreshed, &of_oauth] {
        expect_at_once(first, &agent, token, &["reader"], &["read"]).await;
        expect_at_once(second, &agent, token, &["writer"], &["write"]).await;
    }
    let narrow = text(&log_in(&fixture.control, &agent, &[("scope", "write")]).await.expect(200)["access_token"]);
    expect_at_once(first, &agent, &narrow, &["reader"], &[]).await;
    expect_at_once(second, &agent, &narrow, &["writer"], &["write"]).await;

    assert!(fixture.control.revoke(&agent.id, &role).await);
    for token in [&token, &refreshed, &of_oauth] {
        expect(first, "the role is revoked", &agent, token, &[], &[]).await;
        expect_at_once(second, &agent, token, &["writer"], &["write"]).await;
    }
}

#[tokio::test]
async fn roles_of_unbound_tokens_follow_later_changes() {
    let fixture = Fixture::start().await;
    let (first, second) = (fixture.verifiers(), fixture.verifiers_of(&fixture.second));
    let control = &fixture.control;
    let (agent, role) = agent_with_roles(&fixture).await;
    let guest = control.create_role("guest", &["look"]).await;
    control.assign_until(&agent.id, &guest, Some(seconds_from_now(4))).await;
    let token = text(&log_in_by_specification(&fixture, &agent).await["accessToken"]);
    expect(first, "before the expiry", &agent, &token, &["guest", "reader"], &["look", "read"]).await;
    expect(first, "after the expiry", &agent, &token, &["reader"], &["read"]).await;

    control.delete_role(&role).await.expect(200);
    control.create_role("reader", &["everything"]).await;
    expect(first, "the role is another one of the same name", &agent, &token, &[], &[]).await;
    let after = text(&log_in_by_specification(&fixture, &agent).await["accessToken"]);
    assert_eq!(jwt::claims(&after)["aud"], fixture.second.0, "one service remains, and is the default");
    expect_at_once(second, &agent, &token, &["writer"], &["write"]).await;
}

#[tokio::test]
async fn services_that_refuse_unbound_tokens_are_not_in_them() {
    let fixture = Fixture::start().await;
    let (first, strict) = (fixture.verifiers(), fixture.verifiers_of(&fixture.strict));
    let (agent, _) = agent_with_roles(&fixture).await;
    fixture.assign_at(&fixture.strict, &agent, "auditor", &["audit"]).await;
    let token = text(&log_in_by_specification(&fixture, &agent).await["accessToken"]);
    strict.wait_until_equal("it refuses unbound tokens", &token, refused(401, "token_unbound")).await;
    fixture.set_accepts_unbound(&fixture.strict.0, true).await;
    expect(strict, "the token is from before", &agent, &token, &[], &[]).await;
    assert_eq!(check_with_role(&fixture, strict.service, &token).await.reason, "no_role");
    let next = text(&log_in_by_specification(&fixture, &agent).await["accessToken"]);
    expect(strict, "the next token", &agent, &next, &["auditor"], &["audit"]).await;

    fixture.set_accepts_unbound(first.service, false).await;
    for token in [&token, &next] {
        first.wait_until_equal("it has stopped accepting", token, refused(401, "token_unbound")).await;
    }
}

/// A service with more than 16 roles of an agent is left out, and the agent logs in for it.
#[tokio::test]
async fn too_many_roles_need_a_login_for_the_service() {
    let fixture = Fixture::start().await;
    let (first, second) = (fixture.verifiers(), fixture.verifiers_of(&fixture.second));
    let (agent, _) = agent_with_roles(&fixture).await;
    for number in 0..16 {
        let role = fixture.control.create_role(&format!("role-{number:02}"), &[]).await;
        fixture.control.assign(&agent.id, &role).await;
    }
    let bound = agent.token_for(first.service).await;
    let has_all =
        |outcome: &VerifyOutcome| matches!(outcome, VerifyOutcome::Accepted { roles, .. } if roles.len() == 17);
    first.wait_until_equal("the sidecar has all roles", &bound, has_all).await;
    // The login for the service makes it the default, so another agent shows the limit.
    let other = fixture.register_agent("Agent").await;
    fixture.assign_at(&fixture.second, &other, "another writer", &["write"]).await;
    let roles = fixture.control.api.get_as(first.key, &fixture.control.path("/roles?limit=200")).await.expect(200);
    for role in roles["data"].as_array().unwrap() {
        fixture.control.assign(&other.id, &text(&role["id"])).await;
    }
    let token = text(&log_in_by_specification(&fixture, &other).await["accessToken"]);
    expect(first, "more than 16 roles", &other, &token, &[], &[]).await;
    expect(second, "the other service", &other, &token, &["another writer"], &["write"]).await;
    assert_eq!(check_with_role(&fixture, first.service, &token).await.reason, "no_role");
}

/// What one service learns about roles at another one: how many entries the token has, in steps of 8.
#[tokio::test]
async fn unbound_tokens_tell_no_service_about_another() {
    let fixture = Fixture::start().await;
    let (agent, role) = agent_with_roles(&fixture).await;
    fixture.control.assign_until(&agent.id, &role, Some(seconds_from_now(600))).await;
    let entries = |token: &str| {
        let claims = jwt::claims(token);
        assert_eq!((&claims["roles"], &claims["permissions"]), (&json!([]), &json!([])), "{claims}");
        assert!(claims.get("until").is_none() && !claims.to_string().contains(&role), "{claims}");
        let bytes = URL_SAFE_NO_PAD.decode(text(&claims["grants"])).unwrap();
        bytes.chunks(ENTRY_LEN).map(<[u8]>::to_vec).collect::<Vec<_>>()
    };
    let log_in = async |agent: &Agent| entries(&text(&log_in_by_specification(&fixture, agent).await["accessToken"]));
    let (one, other) = (log_in(&agent).await, log_in(&agent).await);
    assert_eq!((one.len(), other.len()), (8, 8));
    assert!(one.iter().all(|entry| !other.contains(entry)), "two tokens of an agent cannot be linked");
    let without_roles = fixture.register_agent("Agent without roles").await;
    assert_eq!(log_in(&without_roles).await.len(), 8, "an agent without roles looks the same");
}
