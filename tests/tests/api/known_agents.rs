//! What a service that an agent has never used can do to the agent: its influence on the trust score, on the service of the
//! next login, and what it reads.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]

use countersign_client::PrivateKey;
use countersign_tests::{Agent, ControlPlane, InProcessServer, ManualClock, control_plane::text, jwt};
use serde_json::{Value, json};
use std::time::Duration;

/// A service of a person, and an API key of the service.
struct Tenant {
    service: String,
    key: String,
}

impl Tenant {
    async fn new(control: &ControlPlane, person: &str) -> Self {
        let human = control.mint_human(person);
        let (service, key) = control.create_service_of(&human, json!({ "name": "a service" })).await;
        Self { service, key }
    }

    /// Submits feedback and returns the new trust score.
    async fn rate(&self, control: &ControlPlane, agent: &str, score: u8) -> f64 {
        let body = json!({ "agentId": agent, "score": score, "reason": "a secret reason", "metadata": { "a": 1 } });
        let response = control.api.send_as(&self.key, "POST", "/trust/feedback", body).await.expect(200);
        response["newTrustScore"].as_f64().unwrap()
    }

    async fn assign_new_role(&self, control: &ControlPlane, agent: &str) {
        let path = format!("/services/{}", self.service);
        let role = json!({ "name": "reader", "permissions": ["read"] });
        let role = control.api.send_as(&self.key, "POST", &format!("{path}/roles"), role).await.expect(201);
        let body = json!({ "roleId": role["roleId"] });
        control.api.send_as(&self.key, "POST", &format!("{path}/agents/{agent}/roles"), body).await.expect(200);
    }
}

/// The service of a token, or `unbound`.
fn audience(control: &ControlPlane, token: &str) -> String {
    let audience = text(&jwt::claims(token)["aud"]);
    if audience == control.env["URL"] { "unbound".to_owned() } else { audience }
}

#[tokio::test]
async fn services_that_the_agent_never_used_move_trust_like_one_feedback() {
    let control = ControlPlane::shared().await;
    let agent = Agent::register(&control, "Agent").await;
    let friend = Tenant::new(&control, "friend").await;
    agent.token_for(&friend.service).await;
    assert!((friend.rate(&control, &agent.id, 90).await - 58.0).abs() < 0.01);
    let mut after = 0.0;
    for number in 0..11 {
        let stranger = Tenant::new(&control, if number < 6 { "mallory" } else { "trudy" }).await;
        stranger.assign_new_role(&control, &agent.id).await;
        for _ in 0..9 {
            after = stranger.rate(&control, &agent.id, 0).await;
        }
    }
    let expected: f64 = (4.0 * 50.0 + 90.0) / 6.0;
    assert!((after - expected).abs() < 0.01, "{after} instead of {expected}");
}

/// The strangers weigh at most as much as one of the feedbacks of the honest owners.
#[tokio::test]
async fn two_accounts_of_strangers_do_not_outweigh_three_honest_owners() {
    let control = ControlPlane::shared().await;
    let agent = Agent::register(&control, "Agent").await;
    for owner in ["honest-1", "honest-2", "honest-3"] {
        let honest = Tenant::new(&control, owner).await;
        agent.token_for(&honest.service).await;
        honest.rate(&control, &agent.id, 90).await;
    }
    let mut after = 0.0;
    for number in 0..8 {
        let stranger = Tenant::new(&control, &format!("sybil-{}", number % 2)).await;
        for _ in 0..9 {
            after = stranger.rate(&control, &agent.id, 0).await;
        }
    }
    let expected: f64 = (4.0 * 50.0 + 3.0 * 90.0) / 8.0;
    assert!((after - expected).abs() < 0.01, "{after} instead of {expected}");
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
            after = service.rate(&control, &agent.id, 0).await;
        }
    }
    assert!((after - 25.0).abs() < 0.01, "{after}");
}

#[tokio::test]
async fn services_of_the_own_owner_do_not_move_trust() {
    let control = ControlPlane::shared().await;
    let human = control.mint_human("owner-of-both");
    let agent = Agent::register(&control, "Agent").await;
    let public_key = agent.key.public_pem().unwrap();
    let body = json!({ "email": "a@example.org", "name": "owned", "publicKey": public_key });
    let owned = control.api.send_as(&human, "POST", "/auth/register", body).await.expect(201);
    let own = Tenant::new(&control, "owner-of-both").await;
    assert!((own.rate(&control, &text(&owned["agentId"]), 100).await - 50.0).abs() < 0.01);
    assert!((own.rate(&control, &agent.id, 100).await - 60.0).abs() < 0.01, "a public registration has no owner");
}

/// Eight feedbacks of an unknown service move trust to 40, and those of a known service to 25.
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
    assert_eq!((refused.error().0, refused.error().2), (401, "token_audience_mismatch"));
    assert_eq!(refused.text("/error/details/required/serviceId"), refusing.service);

    let with_unbound_token = agent().await;
    let token = with_unbound_token.token().await;
    assert_eq!(audience(&control, &token), "unbound");
    control.verify_at(&accepting.service, &accepting.key, &token).await.expect(200);

    let (with_default_service, with_verified_token) = (agent().await, agent().await);
    for (tenant, agent) in [(&default, &with_default_service), (&verified, &with_verified_token)] {
        tenant.assign_new_role(&control, &agent.id).await;
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
            after = tenant.rate(&control, &agent.id, 0).await;
        }
        assert!((after - expected).abs() < 0.01, "{name}: {after} instead of {expected}");
    }
}

#[tokio::test]
async fn agent_is_forgotten_ninety_days_after_its_last_contact() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), ManualClock::new());
    let server = InProcessServer::start(folder.path(), &[], &clock).await;
    let service = InProcessServer::env(folder.path(), "SERVICE_ID");
    let key = InProcessServer::env(folder.path(), "SERVICE_KEY");
    let agent_key = PrivateKey::generate();
    let body = json!({ "email": "a@example.org", "name": "Agent", "publicKey": agent_key.public_pem().unwrap() });
    let agent = text(&server.api.post("/auth/register", body).await.expect(201)["agentId"]);
    let log_in = async || {
        let body = json!({ "agentId": agent, "serviceId": service });
        let challenge = server.api.post("/auth/challenge", body).await.expect(200);
        let signature = agent_key.sign(&text(&challenge["nonce"]));
        let body = json!({ "challengeId": challenge["challengeId"], "signature": signature });
        server.api.post("/auth/authenticate", body).await.expect(200);
    };
    log_in().await;
    let rate = async |score: u8| {
        let body = json!({ "agentId": agent, "score": score });
        server.api.send_as(&key, "POST", "/trust/feedback", body).await.expect(200)["newTrustScore"].as_f64().unwrap()
    };
    for _ in 0..3 {
        rate(100).await;
    }
    let known = rate(100).await;
    assert!((known - 75.0).abs() < 0.01, "{known}");
    clock.advance(Duration::from_hours(90 * 24));
    let forgotten = rate(100).await;
    assert!((forgotten - 60.0).abs() < 0.01, "{forgotten}");
    log_in().await;
    let known_again = rate(100).await;
    assert!(known_again > 70.0, "{known_again}");
    server.server.stop().await;
}

#[tokio::test]
async fn login_without_a_service_is_for_the_service_of_the_last_login() {
    let control = ControlPlane::shared().await;
    let agent = Agent::register(&control, "Agent").await;
    let tenant = async |name: &str| Tenant::new(&control, name).await;
    let (first, second, stranger) = (tenant("a").await, tenant("b").await, tenant("mallory").await);
    let default = async || audience(&control, &agent.token().await);
    assert_eq!(default().await, "unbound", "no role");
    first.assign_new_role(&control, &agent.id).await;
    assert_eq!(default().await, first.service, "the only service with a role");
    stranger.assign_new_role(&control, &agent.id).await;
    assert_eq!(default().await, first.service, "a stranger's role changes nothing");
    second.assign_new_role(&control, &agent.id).await;
    agent.token_for(&second.service).await;
    assert_eq!(default().await, second.service, "the service of the last login");
    let human = control.mint_human("b");
    let roles = format!("/services/{}/roles", second.service);
    let role = text(&control.api.get_as(&human, &roles).await.expect(200)["data"][0]["id"]);
    let path = format!("/services/{}/agents/{}/roles/{role}", second.service, agent.id);
    control.api.send_as(&human, "DELETE", &path, Value::Null).await.expect(200);
    assert_eq!(
        default().await,
        "unbound",
        "no role at the service of the last login, and several services with a role"
    );
}

/// A stranger becomes the default service while the role at the service of the last login has lapsed, and not longer.
#[tokio::test]
async fn stranger_does_not_keep_the_logins_of_an_agent_whose_role_lapsed() {
    let control = ControlPlane::shared().await;
    let agent = Agent::register(&control, "Agent").await;
    let stranger = Tenant::new(&control, "mallory").await;
    let role = control.create_role("lapsing", &["read"]).await;
    control.assign(&agent.id, &role).await;
    let default = async || audience(&control, &agent.token().await);
    assert_eq!(default().await, control.service());
    stranger.assign_new_role(&control, &agent.id).await;
    control.revoke(&agent.id, &role).await;
    assert_eq!(default().await, stranger.service, "the only service with a role");
    control.assign(&agent.id, &role).await;
    assert_eq!(default().await, control.service());
}

#[tokio::test]
async fn identical_registrations_at_the_same_time_create_one_agent() {
    let control = ControlPlane::shared().await;
    let key = Agent::register(&control, "Agent").await.key.public_pem().unwrap();
    let human = control.mint_human("registrant");
    for token in [None, Some(&human)] {
        let register = |_| {
            let body = json!({ "email": "a@example.org", "name": "concurrent", "publicKey": key });
            let request = control.api.request("POST", "/auth/register").json(&body);
            let request = if let Some(token) = token { request.bearer_auth(token) } else { request };
            countersign_tests::HttpResponse::send(request)
        };
        let responses = futures_util::future::join_all((0..50).map(register)).await;
        let ids: std::collections::BTreeSet<_> =
            responses.into_iter().map(|response| text(&response.expect(201)["agentId"])).collect();
        assert_eq!(ids.len(), 1, "{ids:?}");
    }
}

#[tokio::test]
async fn feedback_reason_and_metadata_of_other_services_are_not_readable() {
    let control = ControlPlane::shared().await;
    let agent = Agent::register(&control, "Agent").await;
    let (author, reader) = (Tenant::new(&control, "author").await, Tenant::new(&control, "reader").await);
    author.rate(&control, &agent.id, 30).await;
    for (tenant, reason, metadata) in [(&author, "a secret reason", json!({ "a": 1 })), (&reader, "", json!({}))] {
        let path = format!("/trust/agents/{}/history", agent.id);
        let history = control.api.get_as(&tenant.key, &path).await.expect(200);
        let record = &history["data"][0];
        assert_eq!((&record["reason"], &record["metadata"]), (&json!(reason), &metadata));
        assert_eq!((&record["score"], &record["serviceId"]), (&json!(30), &json!(author.service)));
    }
}
