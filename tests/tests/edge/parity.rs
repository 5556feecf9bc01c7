//! Tests that API and sidecar have the same outcome after every change to an agent.

mod fixture;
mod unbound_roles;

use countersign_tests::VerifyOutcome;
use fixture::{Fixture, accepted, refused, seconds_from_now};
use secrecy::ExposeSecret;

#[tokio::test]
async fn api_and_sidecar_agree_on_assigned_and_revoked_roles() {
    let fixture = Fixture::start().await;
    let (first, control) = (fixture.verifiers(), &fixture.control);
    let (name, special) = ("Ålesund 100%, \"West\"", "Prüfer, 100% \"special\"");
    let agent = fixture.register_agent(name).await;
    let before = agent.token_for(control.service()).await;
    first.wait_until_equal("the agent has no role", &before, accepted(&agent, name, &[], &[])).await;

    let reader = control.create_role("reader", &["read", "list"]).await;
    control.assign(&agent.id, &reader).await;
    let after = agent.token().await;
    let expect = async |case: &str, roles: &[&str], permissions: &[&str]| {
        for token in [&before, &after] {
            first.wait_until_equal(case, token, accepted(&agent, name, roles, permissions)).await;
        }
    };
    expect("the agent has a role", &["reader"], &["list", "read"]).await;
    let special_role = control.create_role(special, &["write", "read", "a%2Cb"]).await;
    control.assign(&agent.id, &special_role).await;
    expect("the agent has two roles", &[special, "reader"], &["a%2Cb", "list", "read", "write"]).await;
    assert!(control.revoke(&agent.id, &reader).await);
    expect("the first role is revoked", &[special], &["a%2Cb", "read", "write"]).await;
    assert!(control.revoke(&agent.id, &special_role).await);
    expect("both roles are revoked", &[], &[]).await;
    control.assign(&agent.id, &reader).await;
    expect("the first role is assigned again", &["reader"], &["list", "read"]).await;
}

#[tokio::test]
async fn api_and_sidecar_agree_on_expiring_roles() {
    let fixture = Fixture::start().await;
    let (first, control) = (fixture.verifiers(), &fixture.control);
    let agent = fixture.register_agent("Agent").await;
    let guest = control.create_role("guest", &["look"]).await;
    control.assign(&agent.id, &control.create_role("permanent", &["remain"]).await).await;
    let before = agent.token().await;
    control.assign_until(&agent.id, &guest, Some(seconds_from_now(4))).await;
    let after = agent.token().await;
    let expect = async |case: &str, is_guest: bool| {
        let (roles, permissions) = (["guest", "permanent"], ["look", "remain"]);
        let hidden = usize::from(!is_guest);
        let expected = accepted(&agent, "Agent", &roles[hidden..], &permissions[hidden..]);
        for token in [&before, &after] {
            first.wait_until_equal(case, token, &expected).await;
        }
    };
    expect("before the expiry", true).await;
    expect("after the expiry", false).await;
    control.assign_until(&agent.id, &guest, Some(seconds_from_now(2))).await;
    control.assign_until(&agent.id, &guest, None).await;
    expect("assigned again without an expiry", true).await;
    control.assign_until(&agent.id, &guest, Some(seconds_from_now(2))).await;
    expect("the new expiry has passed", false).await;
}

#[tokio::test]
async fn api_and_sidecar_agree_on_deleted_and_recreated_roles() {
    let fixture = Fixture::start().await;
    let (first, control) = (fixture.verifiers(), &fixture.control);
    let (agent, other) = (fixture.register_agent("Agent").await, fixture.register_agent("Other").await);
    let before = agent.token_for(control.service()).await;
    let deleted_role = control.create_role("reader", &["read"]).await;
    control.assign(&agent.id, &deleted_role).await;
    let with_reader = agent.token().await;
    let expect = async |case: &str, token: &str, roles: &[&str], permissions: &[&str]| {
        first.wait_until_equal(case, token, accepted(&agent, "Agent", roles, permissions)).await;
    };
    for token in [&before, &with_reader] {
        expect("the role is assigned", token, &["reader"], &["read"]).await;
    }
    control.delete_role(&deleted_role).await.expect(200);
    for token in [&before, &with_reader] {
        expect("the role is deleted", token, &[], &[]).await;
    }
    let recreated_role = control.create_role("reader", &["everything"]).await;
    control.assign(&other.id, &recreated_role).await;
    let has_new_role = accepted(&other, "Other", &["reader"], &["everything"]);
    first.wait_until_equal("the sidecar receives the new role", &other.token().await, has_new_role).await;
    let after = agent.token_for(control.service()).await;
    for token in [&before, &with_reader, &after] {
        let outcomes = first.verify(token).await;
        let without_roles = accepted(&agent, "Agent", &[], &[]);
        assert!(without_roles(&outcomes.0) && without_roles(&outcomes.1), "{outcomes:?}");
    }
    control.assign(&agent.id, &recreated_role).await;
    for token in [&before, &with_reader, &after] {
        expect("the new role is assigned", token, &["reader"], &["everything"]).await;
    }
}

#[tokio::test]
async fn api_and_sidecar_agree_on_suspended_reactivated_and_revoked_agents() {
    let fixture = Fixture::start().await;
    let (first, control) = (fixture.verifiers(), &fixture.control);
    let agent = fixture.register_agent("Agent").await;
    let role = control.create_role("reader", &["read"]).await;
    control.assign(&agent.id, &role).await;
    let old = agent.token().await;
    let expected = accepted(&agent, "Agent", &["reader"], &["read"]);
    first.wait_until_equal("the agent is active", &old, &expected).await;

    control.set_status(&agent.id, "suspended").await.expect(200);
    first.wait_until_equal("the agent is suspended", &old, refused(403, "agent_suspended")).await;
    let unauthenticated = |outcome: &VerifyOutcome| matches!(outcome, VerifyOutcome::Refused(401, _));
    let case = "the signature is checked before the status";
    first.wait_until_equal(case, &old[..old.len() - 2], unauthenticated).await;
    control.set_status(&agent.id, "active").await.expect(200);
    first.wait_until_equal("the old token stays revoked", &old, refused(401, "token_revoked")).await;
    let new = agent.token().await;
    first.wait_until_equal("a new token is accepted", &new, &expected).await;

    control.set_status(&agent.id, "revoked").await.expect(200);
    for token in [&old, &new] {
        first.wait_until_equal("the agent is revoked", token, refused(403, "agent_revoked")).await;
    }
    assert_eq!(control.set_status(&agent.id, "active").await.status, 409);
    first.wait_until_equal("the agent stays revoked", &new, refused(403, "agent_revoked")).await;
}

#[tokio::test]
async fn api_and_sidecar_refuse_sessions_ended_by_refresh_token_reuse() {
    let fixture = Fixture::start().await;
    let first = fixture.verifiers();
    let agent = fixture.register_agent("Agent").await;
    let (reused_login, other) = (agent.login().await, agent.token().await);
    let next = agent.api().refresh(&reused_login.refresh_token).await.expect("the refresh succeeds");
    let tokens = [&reused_login, &next].map(|tokens| tokens.access_token.expose_secret());
    for token in tokens {
        first.wait_until_equal("before the reuse", token, accepted(&agent, "Agent", &[], &[])).await;
    }
    agent.api().refresh(&reused_login.refresh_token).await.expect_err("the refresh token was used");
    for token in tokens {
        first.wait_until_equal("the session has ended", token, refused(401, "token_revoked")).await;
    }
    first.wait_until_equal("another session continues", &other, accepted(&agent, "Agent", &[], &[])).await;
}

#[tokio::test]
async fn api_and_sidecar_agree_on_revoked_access_tokens_and_sessions() {
    let mut fixture = Fixture::start().await;
    let agent = fixture.register_agent("Agent").await;
    let (login, other) = (agent.login().await, agent.token().await);
    let next = agent.api().refresh(&login.refresh_token).await.expect("the refresh succeeds");
    let [first_token, sibling] = [&login, &next].map(|tokens| tokens.access_token.expose_secret());
    let expected = accepted(&agent, "Agent", &[], &[]);
    for token in [first_token, sibling, &other] {
        fixture.verifiers().wait_until_equal("before the revocation", token, &expected).await;
    }

    fixture.assert_revoked_at_once(first_token, &[first_token]).await;
    fixture.verifiers().wait_until_equal("another token of the same session", sibling, &expected).await;
    let last = agent.api().refresh(&next.refresh_token).await.expect("the session continues");
    let newest = last.access_token.expose_secret();
    fixture.verifiers().wait_until_equal("issued after another token was revoked", newest, &expected).await;

    fixture.assert_revoked_at_once(last.refresh_token.expose_secret(), &[first_token, sibling, newest]).await;
    let refused_refresh =
        agent.api().refresh(&last.refresh_token).await.expect_err("the session has ended").to_string();
    assert!(refused_refresh.contains("401"), "{refused_refresh}");
    fixture.verifiers().wait_until_equal("another session continues", &other, &expected).await;

    fixture.control.kill();
    fixture.control.restart().await;
    fixture.restart_sidecar().await;
    for token in [first_token, sibling, newest] {
        let revoked = refused(401, "token_revoked");
        fixture.verifiers().wait_until_equal("the revocation survives restarts", token, revoked).await;
    }
    fixture.verifiers().wait_until_equal("another session continues", &other, &expected).await;
}

#[tokio::test]
async fn api_and_sidecar_follow_the_setting_for_unbound_tokens() {
    let mut fixture = Fixture::start().await;
    let agent = fixture.register_agent("Agent").await;
    let unbound_token = agent.token().await;
    let expected = accepted(&agent, "Agent", &[], &[]);
    for accepted in [true, false, true] {
        fixture.set_accepts_unbound(&fixture.strict.0, accepted).await;
        let (first, strict) = (fixture.verifiers(), fixture.verifiers_of(&fixture.strict));
        if accepted {
            strict.wait_until_equal("the service accepts unbound tokens", &unbound_token, &expected).await;
        } else {
            strict.wait_until_equal("it refuses unbound tokens", &unbound_token, refused(401, "token_unbound")).await;
        }
        first.wait_until_equal("another service is not affected", &unbound_token, &expected).await;
    }
    fixture.sidecar.kill();
    fixture.set_accepts_unbound(&fixture.strict.0, false).await;
    fixture.restart_sidecar().await;
    let strict = fixture.verifiers_of(&fixture.strict);
    let case = "the setting changed while the sidecar was stopped";
    strict.wait_until_equal(case, &unbound_token, refused(401, "token_unbound")).await;
}

#[tokio::test]
async fn api_and_sidecar_agree_on_bound_and_unbound_tokens() {
    let fixture = Fixture::start().await;
    let (first, second, strict) =
        (fixture.verifiers(), fixture.verifiers_of(&fixture.second), fixture.verifiers_of(&fixture.strict));
    let agent = fixture.register_agent("Agent").await;
    let unbound_token = agent.token().await;
    let without_roles = || accepted(&agent, "Agent", &[], &[]);
    let reader = |permissions: &'static [&'static str]| accepted(&agent, "Agent", &["reader"], permissions);
    let unbound = || refused(401, "token_unbound");
    first.wait_until_equal("unbound", &unbound_token, without_roles()).await;
    second.wait_until_equal("unbound", &unbound_token, without_roles()).await;
    strict.wait_until_equal("unbound, at the strict service", &unbound_token, unbound()).await;

    let role = fixture.control.create_role("reader", &["read"]).await;
    fixture.control.assign(&agent.id, &role).await;
    fixture.assign_at(&fixture.second, &agent, "reader", &["write"]).await;
    fixture.assign_at(&fixture.strict, &agent, "auditor", &["audit"]).await;
    first.wait_until_equal("unbound, after the assignment", &unbound_token, reader(&["read"])).await;
    second.wait_until_equal("unbound, after the assignment", &unbound_token, reader(&["write"])).await;
    strict.wait_until_equal("unbound, after the assignment", &unbound_token, unbound()).await;

    let services = [
        ("first", first, reader(&["read"])),
        ("second", second, reader(&["write"])),
        ("strict", strict, accepted(&agent, "Agent", &["auditor"], &["audit"])),
    ];
    for (name, verifiers, expected) in &services {
        let token = agent.token_for(verifiers.service).await;
        verifiers.wait_until_equal(&format!("bound to {name}"), &token, expected).await;
        for (other, other_verifiers, _) in services.iter().filter(|(other, ..)| other != name) {
            let case = format!("bound to {name}, verified at {other}");
            other_verifiers.wait_until_equal(&case, &token, refused(401, "token_audience_mismatch")).await;
        }
    }
    let (_, last, expected) = &services[2];
    last.wait_until_equal("bound to the service of the last login", &agent.token().await, expected).await;
}

#[tokio::test]
async fn api_and_sidecar_agree_after_restarts() {
    let mut fixture = Fixture::start().await;
    let agent = fixture.register_agent("Agent").await;
    let role = fixture.control.create_role("reader", &["read"]).await;
    fixture.control.assign(&agent.id, &role).await;
    let token = agent.token().await;
    let reader = accepted(&agent, "Agent", &["reader"], &["read"]);
    fixture.verifiers().wait_until_equal("before the restarts", &token, &reader).await;

    fixture.control.revoke(&agent.id, &role).await;
    fixture.restart_sidecar().await;
    let without_roles = accepted(&agent, "Agent", &[], &[]);
    fixture.verifiers().wait_until_equal("after the restart of the sidecar", &token, without_roles).await;

    fixture.control.kill();
    fixture.control.restart().await;
    fixture.control.assign(&agent.id, &role).await;
    fixture.verifiers().wait_until_equal("after the restart of the control plane", &token, &reader).await;
    fixture.control.set_status(&agent.id, "suspended").await.expect(200);
    fixture.verifiers().wait_until_equal("later changes arrive", &token, refused(403, "agent_suspended")).await;
}
