//! API and sidecar have the same outcome for every change of an agent.

mod fixture;

use countersign_tests::VerifyOutcome;
use fixture::{Fixture, accepted, in_seconds, refused};
use secrecy::ExposeSecret;

#[tokio::test]
async fn api_and_sidecar_agree_on_assigned_and_revoked_roles() {
    let fixture = Fixture::start().await;
    let (first, control) = (fixture.first(), &fixture.control);
    let name = "Ålesund 100%, \"West\"";
    let agent = fixture.agent(name).await;
    let before = agent.token_for(control.service()).await;
    first.agree("the agent has no role", &before, accepted(&agent, name, &[], &[])).await;

    let reader = control.create_role("reader", &["read", "list"]).await;
    control.assign(&agent.id, &reader).await;
    let with_reader = agent.token().await;
    let both = [("token issued before the assignment", &before), ("token issued after the assignment", &with_reader)];
    for (case, token) in both {
        first.agree(case, token, accepted(&agent, name, &["reader"], &["list", "read"])).await;
    }

    let odd = control.create_role("Prüfer, 100% \"odd\"", &["write", "read", "a%2Cb"]).await;
    control.assign(&agent.id, &odd).await;
    let roles = ["Prüfer, 100% \"odd\"", "reader"];
    for (case, token) in both {
        first.agree(case, token, accepted(&agent, name, &roles, &["a%2Cb", "list", "read", "write"])).await;
    }

    assert!(control.revoke(&agent.id, &reader).await);
    for (case, token) in both {
        first.agree(case, token, accepted(&agent, name, &roles[..1], &["a%2Cb", "read", "write"])).await;
    }
    assert!(control.revoke(&agent.id, &odd).await);
    for (case, token) in both {
        first.agree(case, token, accepted(&agent, name, &[], &[])).await;
    }
    control.assign(&agent.id, &reader).await;
    for (case, token) in both {
        first.agree(case, token, accepted(&agent, name, &["reader"], &["list", "read"])).await;
    }
}

#[tokio::test]
async fn api_and_sidecar_agree_on_expiring_roles() {
    let fixture = Fixture::start().await;
    let (first, control) = (fixture.first(), &fixture.control);
    let agent = fixture.agent("Agent").await;
    let (guest, permanent) =
        (control.create_role("guest", &["look"]).await, control.create_role("stays", &["stay"]).await);
    control.assign(&agent.id, &permanent).await;
    let before = agent.token().await;

    control.assign_until(&agent.id, &guest, Some(in_seconds(4))).await;
    let after = agent.token().await;
    let tokens = [("token issued before the assignment", &before), ("token issued after the change", &after)];
    for (case, token) in tokens {
        first.agree(case, token, accepted(&agent, "Agent", &["guest", "stays"], &["look", "stay"])).await;
    }
    for (case, token) in tokens {
        first.agree(case, token, accepted(&agent, "Agent", &["stays"], &["stay"])).await;
    }

    control.assign_until(&agent.id, &guest, Some(in_seconds(2))).await;
    control.assign_until(&agent.id, &guest, None).await;
    for (case, token) in tokens {
        first.agree(case, token, accepted(&agent, "Agent", &["guest", "stays"], &["look", "stay"])).await;
    }
    control.assign_until(&agent.id, &guest, Some(in_seconds(2))).await;
    for (case, token) in tokens {
        first.agree(case, token, accepted(&agent, "Agent", &["stays"], &["stay"])).await;
    }
}

#[tokio::test]
async fn api_and_sidecar_agree_on_deleted_and_recreated_roles() {
    let fixture = Fixture::start().await;
    let (first, control) = (fixture.first(), &fixture.control);
    let (agent, other) = (fixture.agent("Agent").await, fixture.agent("Other").await);
    let before = agent.token_for(control.service()).await;
    let old = control.create_role("reader", &["read"]).await;
    control.assign(&agent.id, &old).await;
    let with_reader = agent.token().await;
    let both = [("token issued before the assignment", &before), ("token issued after the assignment", &with_reader)];
    for (case, token) in both {
        first.agree(case, token, accepted(&agent, "Agent", &["reader"], &["read"])).await;
    }

    control.delete_role(&old).await.expect(200);
    for (case, token) in both {
        first.agree(case, token, accepted(&agent, "Agent", &[], &[])).await;
    }
    let new = control.create_role("reader", &["everything"]).await;
    control.assign(&other.id, &new).await;
    let other_token = other.token().await;
    first
        .agree(
            "the sidecar receives the new role",
            &other_token,
            accepted(&other, "Other", &["reader"], &["everything"]),
        )
        .await;
    let after = agent.token_for(control.service()).await;
    for (case, token) in both.into_iter().chain([("token issued after the change", &after)]) {
        let outcomes = first.verify(token).await;
        let without_roles = accepted(&agent, "Agent", &[], &[]);
        assert!(without_roles(&outcomes.0) && without_roles(&outcomes.1), "{case}: {outcomes:?}");
    }
    control.assign(&agent.id, &new).await;
    for (case, token) in both.into_iter().chain([("token issued after the change", &after)]) {
        first.agree(case, token, accepted(&agent, "Agent", &["reader"], &["everything"])).await;
    }
}

#[tokio::test]
async fn api_and_sidecar_agree_on_suspended_reactivated_and_revoked_agents() {
    let fixture = Fixture::start().await;
    let (first, control) = (fixture.first(), &fixture.control);
    let agent = fixture.agent("Agent").await;
    let role = control.create_role("reader", &["read"]).await;
    control.assign(&agent.id, &role).await;
    let old = agent.token().await;
    let expected = accepted(&agent, "Agent", &["reader"], &["read"]);
    first.agree("the agent is active", &old, &expected).await;

    control.set_status(&agent.id, "suspended").await.expect(200);
    first.agree("the agent is suspended", &old, refused(403, "agent_suspended")).await;
    first
        .agree("the signature is checked before the status", &old[..old.len() - 2], |outcome| {
            matches!(outcome, VerifyOutcome::Refused(401, _))
        })
        .await;
    control.set_status(&agent.id, "active").await.expect(200);
    first.agree("the old token stays revoked", &old, refused(401, "token_revoked")).await;
    let new = agent.token().await;
    first.agree("a new token is accepted", &new, &expected).await;

    control.set_status(&agent.id, "revoked").await.expect(200);
    for token in [&old, &new] {
        first.agree("the agent is revoked", token, refused(403, "agent_revoked")).await;
    }
    assert_eq!(control.set_status(&agent.id, "active").await.status, 409);
    first.agree("the agent stays revoked", &new, refused(403, "agent_revoked")).await;
}

#[tokio::test]
async fn api_and_sidecar_refuse_sessions_ended_by_refresh_token_reuse() {
    let fixture = Fixture::start().await;
    let first = fixture.first();
    let agent = fixture.agent("Agent").await;
    let (reused_login, other) = (agent.login().await, agent.token().await);
    let next = agent.api.refresh(&reused_login).await.expect("refreshed");
    let tokens = [&reused_login, &next].map(|tokens| tokens.access_token.expose_secret());
    for token in tokens {
        first.agree("before the reuse", token, accepted(&agent, "Agent", &[], &[])).await;
    }
    agent.api.refresh(&reused_login).await.expect_err("the refresh token was used");
    for token in tokens {
        first.agree("the session has ended", token, refused(401, "token_revoked")).await;
    }
    first.agree("another session continues", &other, accepted(&agent, "Agent", &[], &[])).await;
}

#[tokio::test]
async fn api_and_sidecar_agree_on_revoked_access_tokens_and_sessions() {
    let mut fixture = Fixture::start().await;
    let agent = fixture.agent("Agent").await;
    let (login, other) = (agent.login().await, agent.token().await);
    let next = agent.api.refresh(&login).await.expect("refreshed");
    let [first_token, sibling] = [&login, &next].map(|tokens| tokens.access_token.expose_secret());
    let expected = accepted(&agent, "Agent", &[], &[]);
    for token in [first_token, sibling, &other] {
        fixture.first().agree("before the revocation", token, &expected).await;
    }

    fixture.revoke_at_once(first_token, &[first_token]).await;
    fixture.first().agree("another token of the same session", sibling, &expected).await;
    let last = agent.api.refresh(&next).await.expect("the session continues");
    let newest = last.access_token.expose_secret();
    fixture.first().agree("issued after another token was revoked", newest, &expected).await;

    fixture.revoke_at_once(last.refresh_token.expose_secret(), &[first_token, sibling, newest]).await;
    let refused_refresh = agent.api.refresh(&last).await.expect_err("the session has ended").to_string();
    assert!(refused_refresh.contains("401"), "{refused_refresh}");
    fixture.first().agree("another session continues", &other, &expected).await;

    fixture.control.kill();
    fixture.control.restart().await;
    fixture.sidecar.restart();
    fixture.sidecar.await_ready().await;
    for token in [first_token, sibling, newest] {
        fixture.first().agree("the revocation survives restarts", token, refused(401, "token_revoked")).await;
    }
    fixture.first().agree("another session continues", &other, &expected).await;
}

#[tokio::test]
async fn api_and_sidecar_follow_the_setting_for_unbound_tokens() {
    let mut fixture = Fixture::start().await;
    let agent = fixture.agent("Agent").await;
    let unbound_token = agent.token().await;
    let expected = accepted(&agent, "Agent", &[], &[]);
    for accepted in [true, false, true] {
        fixture.set_accepts_unbound(&fixture.strict.0, accepted).await;
        let (first, strict) = (fixture.first(), fixture.verifiers_of(&fixture.strict));
        if accepted {
            strict.agree("the service accepts unbound tokens", &unbound_token, &expected).await;
        } else {
            strict.agree("the service refuses unbound tokens", &unbound_token, refused(401, "token_unbound")).await;
        }
        first.agree("another service is not affected", &unbound_token, &expected).await;
    }
    fixture.sidecar.kill();
    fixture.set_accepts_unbound(&fixture.strict.0, false).await;
    fixture.sidecar.restart();
    fixture.sidecar.await_ready().await;
    let strict = fixture.verifiers_of(&fixture.strict);
    strict
        .agree("the setting changed while the sidecar was stopped", &unbound_token, refused(401, "token_unbound"))
        .await;
}

#[tokio::test]
async fn api_and_sidecar_agree_on_bound_and_unbound_tokens() {
    let fixture = Fixture::start().await;
    let (first, second, strict) =
        (fixture.first(), fixture.verifiers_of(&fixture.second), fixture.verifiers_of(&fixture.strict));
    let agent = fixture.agent("Agent").await;
    let unbound_token = agent.token().await;
    first.agree("unbound", &unbound_token, accepted(&agent, "Agent", &[], &[])).await;
    second.agree("unbound", &unbound_token, accepted(&agent, "Agent", &[], &[])).await;
    strict
        .agree("unbound, at the service that refuses unbound tokens", &unbound_token, refused(401, "token_unbound"))
        .await;

    let role = fixture.control.create_role("reader", &["read"]).await;
    fixture.control.assign(&agent.id, &role).await;
    fixture.assign_at(&fixture.second, &agent, "reader", &["write"]).await;
    fixture.assign_at(&fixture.strict, &agent, "auditor", &["audit"]).await;
    first
        .agree(
            "unbound, issued before the assignment",
            &unbound_token,
            accepted(&agent, "Agent", &["reader"], &["read"]),
        )
        .await;
    second
        .agree(
            "unbound, issued before the assignment",
            &unbound_token,
            accepted(&agent, "Agent", &["reader"], &["write"]),
        )
        .await;
    strict.agree("unbound, issued before the assignment", &unbound_token, refused(401, "token_unbound")).await;

    let services = [
        ("first", first, accepted(&agent, "Agent", &["reader"], &["read"])),
        ("second", second, accepted(&agent, "Agent", &["reader"], &["write"])),
        ("strict", strict, accepted(&agent, "Agent", &["auditor"], &["audit"])),
    ];
    for (name, verifiers, expected) in &services {
        let token = agent.token_for(verifiers.service).await;
        verifiers.agree(&format!("bound to {name}"), &token, expected).await;
        for (other, other_verifiers, _) in services.iter().filter(|(other, ..)| other != name) {
            let case = format!("bound to {name}, verified at {other}");
            other_verifiers.agree(&case, &token, refused(401, "token_audience_mismatch")).await;
        }
    }
    first.agree("bound to the service of the oldest role", &agent.token().await, &services[0].2).await;
}

#[tokio::test]
async fn api_and_sidecar_agree_after_restarts() {
    let mut fixture = Fixture::start().await;
    let agent = fixture.agent("Agent").await;
    let role = fixture.control.create_role("reader", &["read"]).await;
    fixture.control.assign(&agent.id, &role).await;
    let token = agent.token().await;
    fixture.first().agree("before the restarts", &token, accepted(&agent, "Agent", &["reader"], &["read"])).await;

    fixture.control.revoke(&agent.id, &role).await;
    fixture.sidecar.restart();
    fixture.sidecar.await_ready().await;
    fixture.first().agree("after the restart of the sidecar", &token, accepted(&agent, "Agent", &[], &[])).await;

    fixture.control.kill();
    fixture.control.restart().await;
    fixture.control.assign(&agent.id, &role).await;
    fixture
        .first()
        .agree("after the restart of the control plane", &token, accepted(&agent, "Agent", &["reader"], &["read"]))
        .await;
    fixture.control.set_status(&agent.id, "suspended").await.expect(200);
    fixture.first().agree("later changes arrive", &token, refused(403, "agent_suspended")).await;
}
