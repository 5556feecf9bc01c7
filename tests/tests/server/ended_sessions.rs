//! Tests that ended sessions and old revoked API keys are deleted as soon as nothing depends on them, and that what depends on them
//! stays refused.

use super::housekeeping::wait_for_housekeeping;
use countersign_client::{Api, PrivateKey};
use countersign_tests::{
    Agent, ControlPlane, Database, InProcessServer, ManualClock,
    agent::{log_in_at, signed_challenge},
    control_plane::text,
};
use serde_json::{Value, json};
use std::time::Duration;

const MINUTE: Duration = Duration::from_mins(1);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ended_session_is_deleted_when_its_tokens_and_its_challenge_have_expired() {
    let (clock, folder) = (ManualClock::new(), tempfile::tempdir().unwrap());
    // With this setting, a challenge and a client assertion are valid for longer than the access token.
    let settings = [("tokens.access_seconds", "60".to_owned())];
    let server = InProcessServer::start(folder.path(), &settings, &clock).await;
    let mut database = Database::open(&InProcessServer::database_url(folder.path()).await).await;
    let authority = std::fs::read(folder.path().join("ca.pem")).unwrap();
    let (client, key) = (Api::new(&server.api.url, Some(&authority)).unwrap(), PrivateKey::generate());
    let agent = client.register(&key, "owner@example.org", "Agent", None).await.unwrap().agent_id;
    let api = &server.api;
    let refresh = async |token: &Value| api.post("/auth/refresh", json!({ "refreshToken": token })).await;

    let login = signed_challenge(api, &agent, &key).await;
    let authenticate = async || api.post("/auth/authenticate", login.clone()).await;
    let tokens = authenticate().await.expect(200);
    let live = log_in_at(api, &agent, &key).await;
    let used = &tokens["refreshToken"];
    let unused = &refresh(used).await.expect(200)["refreshToken"].clone();
    api.post("/auth/revoke", json!({ "token": unused })).await.expect(200);
    assert_eq!(refresh(unused).await.error(), (401, "AUTHENTICATION_FAILED", "refresh_revoked"));
    assert_eq!(refresh(used).await.error(), (401, "AUTHENTICATION_FAILED", "refresh_reused"));

    clock.advance(MINUTE * 4);
    let repeated = authenticate().await;
    assert_eq!(
        repeated.error(),
        (401, "AUTHENTICATION_FAILED", "challenge_used"),
        "the session is kept for the challenge"
    );
    assert_eq!(refresh(used).await.error().2, "refresh_reused");

    clock.advance(MINUTE * 8);
    wait_for_housekeeping(&mut database, &clock).await;
    assert_eq!(database.count("sessions").await, 1, "only the live session remains");
    for token in [used, unused] {
        assert_eq!(refresh(token).await.error(), (401, "AUTHENTICATION_FAILED", "refresh_invalid"));
        api.post("/auth/revoke", json!({ "token": token })).await.expect(200);
    }
    assert_eq!(authenticate().await.error().2, "challenge_expired");
    refresh(&live["refreshToken"]).await.expect(200);
    server.server.stop().await;
}

/// A clock that was behind when the session ended lets housekeeping delete the session before its tokens expire.
#[tokio::test]
async fn token_without_a_session_is_refused() {
    let control = ControlPlane::start_process().await;
    let agent = Agent::register(&control, "Agent").await;
    // Do not verify this token before the deletion: the control plane would remember its session until the change feed contains the
    // end.
    let token = agent.token_for(control.service()).await;
    let mut database = Database::connect_to_write(&control).await;
    database.execute("DELETE FROM sessions").await;
    assert_eq!(control.verify(&token).await.error().2, "token_revoked");
    control.verify(&agent.token_for(control.service()).await).await.expect(200);
}

/// Of the revoked API keys of a service, only the newest hundred are kept. The audit log contains all revocations.
#[tokio::test]
async fn service_keeps_its_newest_revoked_keys() {
    let control = ControlPlane::start_process_with(&["quotas.keys_per_service=200"]).await;
    let keys = control.path("/keys");
    let mut created = Vec::new();
    for number in 0..103 {
        let body = json!({ "name": format!("key {number}"), "scope": "sync" });
        let key = control.api.send_as(control.human(), "POST", &keys, body).await.expect(201);
        created.push(format!("{keys}/{}", text(&key["keyId"])));
    }
    let total = async || {
        let listed = control.api.get_as(control.human(), &keys).await.expect(200);
        listed["pagination"]["total"].as_u64().unwrap()
    };
    let revoke = async |path: &str| control.api.send_as(control.human(), "DELETE", path, json!({})).await;
    let live = total().await - 103;
    // The key that was created first is revoked last.
    for path in created.iter().skip(1).chain(&created[..1]) {
        revoke(path).await.expect(200);
    }
    assert_eq!(total().await, live + 100);
    for path in &created[1..4] {
        assert_eq!(revoke(path).await.error().1, "NOT_FOUND");
    }
    for path in [&created[0], &created[4], &created[102]] {
        revoke(path).await.expect(200);
    }
    let entries = format!("/audit?serviceId={}&action=service_key.revoked", control.service());
    let audited = control.api.get_as(control.human(), &entries).await.expect(200);
    assert_eq!(audited["pagination"]["total"], 103);
}
