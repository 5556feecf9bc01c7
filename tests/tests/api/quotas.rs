//! Quotas: how much a person, a service and an agent may have.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]

use countersign_client::PrivateKey;
use countersign_tests::{
    Agent, ControlPlane, Database, HttpResponse,
    agent::registration,
    audiences::{AUDIENCES_PER_AGENT, add_audiences},
    control_plane::text,
    http::items,
};
use futures_util::future::join_all;
use secrecy::ExposeSecret;
use serde_json::json;

/// Asserts that a quota refuses the request. `setting` names the setting that raises the quota; it is empty if none can.
#[track_caller]
fn assert_quota_exceeded(refused: &HttpResponse, setting: &str, limit: u32) {
    assert_eq!(refused.code(), (409, "CONFLICT"), "{refused:?}");
    let details = &refused.body["error"]["details"];
    let mut expected = json!({ "reason": "quota_exceeded", "limit": limit });
    if !setting.is_empty() {
        expected["setting"] = json!(setting);
    }
    assert_eq!(details, &expected);
    let message = match setting {
        "registration.public_agents" => "No more agents can be registered without the token of a human user".to_owned(),
        "" if limit == 100 => "The agent has access tokens for 100 services, the maximum".to_owned(),
        _ => format!("The maximum of {limit} "),
    };
    assert!(refused.text("/error/message").starts_with(&message), "{refused:?}");
}

/// Sends ten requests at once. Asserts that exactly `expected` of them succeed, and returns a refused response.
async fn ten_at_once(send: impl AsyncFn(usize) -> HttpResponse, created: u16, expected: usize) -> HttpResponse {
    let send = &send;
    let responses = join_all((0..10).map(|number| async move { send(number).await })).await;
    let (accepted, refused): (Vec<_>, Vec<_>) = responses.into_iter().partition(|response| response.status == created);
    assert_eq!(accepted.len(), expected, "{refused:?}");
    refused.into_iter().next().unwrap()
}

#[tokio::test]
async fn persons_and_services_have_at_most_their_quota_also_at_once() {
    let settings = ["quotas.services_per_person=3", "quotas.agents_per_person=4", "quotas.keys_per_service=5"];
    let control = ControlPlane::start_with(&settings).await;
    let (alice, bob) = (control.mint_human("alice"), control.mint_human("bob"));
    let create_service = async |_| control.api.send_as(&alice, "POST", "/services", json!({ "name": "s" })).await;
    assert_quota_exceeded(&ten_at_once(create_service, 201, 3).await, "quotas.services_per_person", 3);
    control.api.send_as(&bob, "POST", "/services", json!({ "name": "s" })).await.expect(201);

    let key = PrivateKey::generate();
    let register = async |number: usize| {
        let body = registration(&key, &format!("agent {number}"));
        control.api.send_as(&alice, "POST", "/auth/register", body).await
    };
    assert_quota_exceeded(&ten_at_once(register, 201, 4).await, "quotas.agents_per_person", 4);
    let register = &register;
    let repeated = join_all((0..10).map(|number| async move { register(number).await })).await;
    assert_eq!(repeated.iter().filter(|response| response.status == 201).count(), 4, "existing agents are returned");

    let services = control.api.get_as(&alice, "/services").await.expect(200);
    let service = format!("/services/{}", text(&services["data"][0]["serviceId"]));
    let keys = format!("{service}/keys");
    let create_key =
        async |_| control.api.send_as(&alice, "POST", &keys, json!({ "name": "k", "scope": "full" })).await;
    assert_quota_exceeded(&ten_at_once(create_key, 201, 5).await, "quotas.keys_per_service", 5);
    let listed = control.api.get_as(&alice, &keys).await.expect(200);
    let path = format!("{keys}/{}", text(&listed["data"][0]["keyId"]));
    control.api.delete_as(&alice, &path).await.expect(200);
    create_key(0).await.expect(201);

    let target = json!({ "url": "http://127.0.0.1:1024/hook", "events": ["*"] });
    let collections = [(alice.as_str(), format!("{service}/webhooks")), (control.human(), "/webhooks".to_owned())];
    for (bearer, collection) in collections {
        let create_target = async |_: usize| control.api.send_as(bearer, "POST", &collection, target.clone()).await;
        for number in 0..4 {
            create_target(number).await.expect(201);
        }
        assert_quota_exceeded(&ten_at_once(create_target, 201, 6).await, "", 10);
        let listed = control.api.get_as(bearer, &collection).await.expect(200);
        assert_eq!(items(&listed).len(), 10);
        let path = format!("{collection}/{}", text(&listed["data"][3]["webhookId"]));
        control.api.delete_as(bearer, &path).await.expect(200);
        create_target(0).await.expect(201);
    }
}

/// The numbers of active services and of active agents, as `GET /status` counts them.
async fn active(control: &ControlPlane) -> [i64; 2] {
    let status = control.api.get_as(control.key(), "/status").await.expect(200);
    ["activeServices", "activeAgents"].map(|name| status[name].as_i64().unwrap())
}

/// If each call counted all agents, anybody could slow down the server for everybody.
#[tokio::test]
async fn status_is_read_from_kept_totals() {
    let control = ControlPlane::start().await;
    Agent::register(&control, "Agent").await;
    let counts = || active(&control);
    assert_eq!((counts().await, counts().await), ([1, 1], [1, 1]));
    Database::connect_to_write(&control).await.execute("UPDATE totals SET total = total + 1000").await;
    assert_eq!((counts().await, counts().await), ([1001, 1001], [1001, 1001]), "no row was counted");
    Agent::register(&control, "Another").await;
    assert_eq!((counts().await, counts().await), ([1001, 1002], [1001, 1002]));
}

#[tokio::test]
async fn agents_without_an_owner_have_a_quota_together() {
    let control = ControlPlane::start_with(&["registration.public_agents=2"]).await;
    for name in ["first", "second"] {
        Agent::register(&control, name).await;
    }
    let body = registration(&PrivateKey::generate(), "third");
    let refused = control.api.post("/auth/register", body.clone()).await;
    assert_quota_exceeded(&refused, "registration.public_agents", 2);
    control.api.send_as(control.human(), "POST", "/auth/register", body).await.expect(201);
}

#[tokio::test]
async fn login_over_the_quota_ends_the_oldest_session() {
    let control = ControlPlane::start_with(&["quotas.sessions_per_agent=2"]).await;
    let agent = Agent::register(&control, "Agent").await;
    let mut logins = Vec::new();
    for _ in 0..4 {
        logins.push(agent.login().await);
    }
    for (number, login) in logins.iter().enumerate() {
        let verified = control.verify(login.access_token.expose_secret()).await;
        let body = json!({ "refreshToken": login.refresh_token.expose_secret() });
        let refreshed = control.api.post("/auth/refresh", body).await;
        if number < 2 {
            assert_eq!((verified.error().2, refreshed.error().2), ("token_revoked", "refresh_revoked"), "{number}");
        } else {
            verified.expect(200);
            refreshed.expect(200);
        }
    }
}

#[tokio::test]
async fn agent_has_live_tokens_for_at_most_its_quota_of_services() {
    let control = ControlPlane::start().await;
    let (second, _) = control.create_service(json!({ "name": "second" })).await;
    let agent = Agent::register(&control, "Agent").await;
    // Give the agent tokens for 98 other services.
    add_audiences(&control.database_url(), &agent.id, AUDIENCES_PER_AGENT - 2).await;
    let unbound = agent.login().await;
    agent.token_for(control.service()).await;
    let refused = agent.api().login(&agent.key, &agent.id, Some(&second)).await.unwrap_err().to_string();
    assert!(refused.contains("The agent has access tokens for 100 services, the maximum"), "{refused}");
    agent.token_for(control.service()).await;

    let refresh = async |service: Option<&str>| {
        let body = json!({ "refreshToken": unbound.refresh_token.expose_secret(), "serviceId": service });
        control.api.post("/auth/refresh", body).await
    };
    assert_quota_exceeded(&refresh(Some(&second)).await, "", 100);
    refresh(None).await.expect(200);
}

/// After each start of the control plane, a job counts the totals again.
#[tokio::test]
async fn status_counts_active_agents_and_services_across_restarts() {
    let mut control = ControlPlane::start_process().await;
    let agent = Agent::register(&control, "first").await;
    for name in ["second", "third"] {
        Agent::register(&control, name).await;
    }
    control.create_service(json!({ "name": "second" })).await;
    assert_eq!(active(&control).await, [2, 3]);
    for (status, agents) in [("suspended", 2), ("suspended", 2), ("active", 3), ("suspended", 2), ("revoked", 2)] {
        control.set_status(&agent.id, status).await.expect(200);
        assert_eq!(active(&control).await, [2, agents], "{status}");
    }
    control.restart().await;
    assert_eq!(active(&control).await, [2, 2]);
}
