//! What a service that an agent has never used (a stranger) can do to the agent: how much it changes the trust score, whether the
//! next login is for it, and what it can read.

use countersign_client::PrivateKey;
use countersign_tests::{
    Agent, ControlPlane, HttpResponse, ManualClock, Tenant, agent::registration, control_plane::text, jwt,
};
use futures_util::future::join_all;
use reqwest::RequestBuilder;
use std::{collections::BTreeSet, time::Duration};

/// The service of a token, or `unbound`.
fn audience(control: &ControlPlane, token: &str) -> String {
    let audience = text(&jwt::claims(token)["aud"]);
    if audience == control.env["URL"] { "unbound".to_owned() } else { audience }
}

#[tokio::test]
async fn services_of_one_owner_weigh_at_most_like_the_prior_and_all_other_owners() {
    let control = ControlPlane::shared().await;
    let agent = Agent::register(&control, "Agent").await;
    let mut after = 0.0;
    for _ in 0..5 {
        let service = Tenant::new(&control, "one-owner").await;
        agent.token_for(&service.service).await;
        for _ in 0..8 {
            after = control.rate(&service.key, &agent.id, 0).await;
        }
    }
    assert!((after - 25.0).abs() < 0.01, "{after}");
}

#[tokio::test]
async fn services_of_the_own_owner_do_not_move_trust() {
    let control = ControlPlane::shared().await;
    let human = control.mint_human("owner-of-both");
    let agent = Agent::register(&control, "Agent").await;
    let owned = Agent::register_as(&control, &human, "owned").await;
    let own = Tenant::new(&control, "owner-of-both").await;
    assert!((control.rate(&own.key, &owned.id, 100).await - 50.0).abs() < 0.01);
    assert!((control.rate(&own.key, &agent.id, 100).await - 60.0).abs() < 0.01, "a public registration has no owner");
}

/// Eight times the score 0 moves the trust score to 40 if the service is unknown to the agent, and to 25 if it is known.
#[tokio::test]
async fn only_what_the_agent_did_for_a_service_makes_it_known() {
    let control = ControlPlane::shared().await;
    let tenant = async |name: &str| Tenant::new(&control, name).await;
    let (refusing, accepting) = (tenant("refusing").await, tenant("accepting").await);
    let (default, verified) = (tenant("default").await, tenant("verified").await);
    let agent = async || Agent::register(&control, "Agent").await;

    let with_refused_token = agent().await;
    let elsewhere = with_refused_token.token_for(control.service()).await;
    let refused = control.verify_at(&refusing.service, &refusing.key, &elsewhere).await;
    assert_eq!(refused.reason(), (401, "token_audience_mismatch"));
    assert_eq!(refused.text("/error/details/required/serviceId"), refusing.service);

    let with_unbound_token = agent().await;
    let token = with_unbound_token.token().await;
    assert_eq!(audience(&control, &token), "unbound");
    control.verify_at(&accepting.service, &accepting.key, &token).await.expect(200);

    let (with_default_service, with_verified_token) = (agent().await, agent().await);
    for (tenant, agent) in [(&default, &with_default_service), (&verified, &with_verified_token)] {
        tenant.assign_new_role(&agent.id, "reader", &["read"]).await;
        let token = agent.token().await;
        assert_eq!(audience(&control, &token), tenant.service);
    }
    let token = with_verified_token.token().await;
    control.verify_at(&verified.service, &verified.key, &token).await.expect(200);

    for (name, tenant, agent, expected) in [
        ("a refused token", &refusing, &with_refused_token, 40.0),
        ("an unbound token", &accepting, &with_unbound_token, 40.0),
        ("a default service", &default, &with_default_service, 40.0),
        ("a verified token", &verified, &with_verified_token, 25.0_f64),
    ] {
        let mut after = 0.0;
        for _ in 0..8 {
            after = control.rate(&tenant.key, &agent.id, 0).await;
        }
        assert!((after - expected).abs() < 0.01, "{name}: {after} instead of {expected}");
    }
}

#[tokio::test]
async fn agent_is_forgotten_ninety_days_after_its_last_contact() {
    let clock = ManualClock::new();
    let control = ControlPlane::start_with_clock(&clock, &[]).await;
    let agent = Agent::register(&control, "Agent").await;
    let rate = async || control.rate(control.key(), &agent.id, 100).await;
    agent.token_for(control.service()).await;
    for _ in 0..3 {
        rate().await;
    }
    let known = rate().await;
    assert!((known - 75.0).abs() < 0.01, "{known}");
    clock.advance(Duration::from_hours(90 * 24));
    let forgotten = rate().await;
    assert!((forgotten - 60.0).abs() < 0.01, "{forgotten}");
    agent.token_for(control.service()).await;
    let known_again = rate().await;
    assert!(known_again > 70.0, "{known_again}");
}

#[tokio::test]
async fn login_without_a_service_is_for_the_service_of_the_last_login() {
    let control = ControlPlane::shared().await;
    let agent = Agent::register(&control, "Agent").await;
    let tenant = async |name: &str| Tenant::new(&control, name).await;
    let (first, second, stranger) = (tenant("a").await, tenant("b").await, tenant("mallory").await);
    let default = async || audience(&control, &agent.token().await);
    assert_eq!(default().await, "unbound", "no role");
    first.assign_new_role(&agent.id, "reader", &["read"]).await;
    assert_eq!(default().await, first.service, "the only service with a role");
    stranger.assign_new_role(&agent.id, "reader", &["read"]).await;
    assert_eq!(default().await, first.service, "the role at a service that the agent never used changes nothing");
    second.assign_new_role(&agent.id, "reader", &["read"]).await;
    agent.token_for(&second.service).await;
    assert_eq!(default().await, second.service, "the service of the last login");
    let role = text(&second.get("/roles").await.expect(200)["data"][0]["id"]);
    let path = second.path(&format!("/agents/{}/roles/{role}", agent.id));
    control.api.delete_as(&second.human, &path).await.expect(200);
    assert_eq!(
        default().await,
        "unbound",
        "no role at the service of the last login, and several services with a role"
    );
}

/// While the role at the service of the last login is revoked, the next login is for a stranger. With the role, it no longer is.
#[tokio::test]
async fn stranger_does_not_keep_the_logins_of_an_agent_whose_role_lapsed() {
    let control = ControlPlane::shared().await;
    let agent = Agent::register(&control, "Agent").await;
    let stranger = Tenant::new(&control, "mallory").await;
    let role = control.assign_new_role(&agent.id, "lapsing", &["read"]).await;
    let default = async || audience(&control, &agent.token().await);
    assert_eq!(default().await, control.service());
    stranger.assign_new_role(&agent.id, "reader", &["read"]).await;
    control.revoke(&agent.id, &role).await;
    assert_eq!(default().await, stranger.service, "the only service with a role");
    control.assign(&agent.id, &role).await;
    assert_eq!(default().await, control.service());
}

#[tokio::test]
async fn identical_registrations_at_the_same_time_create_one_agent() {
    let control = ControlPlane::shared().await;
    let body = registration(&PrivateKey::generate(), "concurrent");
    let human = control.mint_human("registrant");
    for token in [None, Some(&human)] {
        let request = || control.api.request("POST", "/auth/register").json(&body);
        let register = |_| HttpResponse::send(token.into_iter().fold(request(), RequestBuilder::bearer_auth));
        let responses = join_all((0..50).map(register)).await;
        let ids: BTreeSet<_> = responses.into_iter().map(|response| text(&response.expect(201)["agentId"])).collect();
        assert_eq!(ids.len(), 1, "{ids:?}");
    }
}
