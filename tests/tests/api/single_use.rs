//! Tests that a challenge yields at most one token pair and a refresh token at most one successor, even with
//! concurrent requests and across a crash.

#![expect(clippy::expect_used, reason = "tests panic on unexpected values")]

use countersign_tests::{Agent, ControlPlane, HttpResponse, agent::forged_refresh_token, control_plane::text};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tokio::task::JoinSet;

const AGENTS: usize = 200;
const ATTEMPTS: usize = 50;
const ROUNDS: usize = 200;

/// The control plane is killed and restarted after this many rounds.
const ROUNDS_PER_RESTART: usize = 50;

/// Sends the same request many times concurrently. Returns how many requests had each outcome, and the bodies of
/// successful responses.
async fn send_concurrently(control: &ControlPlane, path: &str, body: &Value) -> (BTreeMap<String, usize>, Vec<Value>) {
    let mut attempts = JoinSet::new();
    for _ in 0..ATTEMPTS {
        attempts.spawn(HttpResponse::send(control.api.request("POST", path).json(body)));
    }
    let (mut outcomes, mut succeeded) = (BTreeMap::new(), Vec::new());
    while let Some(response) = attempts.join_next().await {
        let response = response.expect("no attempt panics");
        let (status, _, reason) = response.error();
        *outcomes.entry(format!("{status} {reason}").trim().to_owned()).or_default() += 1;
        if status == 200 {
            succeeded.push(response.body);
        }
    }
    (outcomes, succeeded)
}

async fn signed_challenge(control: &ControlPlane, agent: &Agent) -> Value {
    let challenge = control.api.post("/auth/challenge", json!({ "agentId": agent.id })).await.expect(200);
    json!({ "challengeId": challenge["challengeId"], "signature": agent.key.sign(&text(&challenge["nonce"])) })
}

#[tokio::test(flavor = "multi_thread")]
async fn challenge_submitted_concurrently_yields_one_token_pair() {
    let control = ControlPlane::start().await;
    let mut pairs = 0;
    for number in 0..AGENTS {
        let agent = Agent::register(&control, &format!("agent {number}")).await;
        let login = signed_challenge(&control, &agent).await;
        let (outcomes, succeeded) = send_concurrently(&control, "/auth/authenticate", &login).await;
        let expected = BTreeMap::from([("200".into(), 1), ("401 challenge_used".into(), ATTEMPTS - 1)]);
        assert_eq!(outcomes, expected, "agent {number}");
        pairs += succeeded.len();
    }
    assert_eq!(pairs, AGENTS);
}

#[tokio::test(flavor = "multi_thread")]
async fn refresh_token_used_concurrently_has_one_successor_and_ends_its_session() {
    let mut control = ControlPlane::start_process().await;
    let agent = Agent::register(&control, "agent").await;
    let mut revoked = Vec::new();
    for round in 0..ROUNDS {
        if round % ROUNDS_PER_RESTART == ROUNDS_PER_RESTART - 1 {
            control.restart().await;
            for refresh in &revoked {
                let refused = control.api.post("/auth/refresh", json!({ "refreshToken": refresh })).await;
                assert_eq!(refused.error(), (401, "AUTHENTICATION_FAILED", "refresh_revoked"), "after a crash");
            }
        }
        let login = signed_challenge(&control, &agent).await;
        let pair = control.api.post("/auth/authenticate", login).await.expect(200);
        let (outcomes, succeeded) =
            send_concurrently(&control, "/auth/refresh", &json!({ "refreshToken": pair["refreshToken"] })).await;
        assert_eq!(outcomes.get("200"), Some(&1), "round {round}: {outcomes:?}");
        let refused =
            outcomes.iter().filter(|(outcome, _)| outcome.starts_with("401 refresh_re")).map(|(_, count)| count);
        assert_eq!(refused.sum::<usize>(), ATTEMPTS - 1, "round {round}: {outcomes:?}");

        // The reuse of the refresh token ended the session, so the successor and the access tokens are revoked.
        let successor = json!({ "refreshToken": succeeded[0]["refreshToken"] });
        let refused = control.api.post("/auth/refresh", successor).await;
        assert_eq!(refused.error(), (401, "AUTHENTICATION_FAILED", "refresh_revoked"));
        revoked.push(succeeded[0]["refreshToken"].clone());
        for token in [&pair["accessToken"], &succeeded[0]["accessToken"]] {
            let refused = control.verify(&text(token)).await;
            assert_eq!(refused.error(), (401, "AUTHENTICATION_FAILED", "token_revoked"));
        }
    }
}

#[tokio::test]
async fn acknowledged_changes_survive_a_crash() {
    let mut control = ControlPlane::start_process().await;
    let agent = Agent::register(&control, "agent").await;
    let login = signed_challenge(&control, &agent).await;
    let pair = control.api.post("/auth/authenticate", login.clone()).await.expect(200);
    let unused = signed_challenge(&control, &agent).await;
    control.kill();
    control.restart().await;

    let repeated = control.api.post("/auth/authenticate", login).await;
    assert_eq!(repeated.error(), (401, "AUTHENTICATION_FAILED", "challenge_used"));
    control.verify(&text(&pair["accessToken"])).await.expect(200);
    control.api.post("/auth/refresh", json!({ "refreshToken": pair["refreshToken"] })).await.expect(200);
    // A challenge is not stored anywhere, so a crash cannot lose it.
    control.api.post("/auth/authenticate", unused).await.expect(200);
}

#[tokio::test]
async fn wrong_refresh_tokens_change_nothing() {
    let control = ControlPlane::start().await;
    let agent = Agent::register(&control, "agent").await;
    let login = signed_challenge(&control, &agent).await;
    let pair = control.api.post("/auth/authenticate", login).await.expect(200);
    let valid = text(&pair["refreshToken"]);
    let last = if valid.ends_with('0') { "1" } else { "0" };
    let wrong_token = format!("{}{last}", &valid[..valid.len() - 1]);
    let forged = forged_refresh_token(&valid);
    for invalid in
        [wrong_token.as_str(), &forged, "", "rf_", &valid.to_uppercase(), &valid[..valid.len() - 2], control.key()]
    {
        let refused = control.api.post("/auth/refresh", json!({ "refreshToken": invalid })).await;
        assert_eq!(refused.error(), (401, "AUTHENTICATION_FAILED", "refresh_invalid"), "{invalid}");
    }
    control.api.post("/auth/refresh", json!({ "refreshToken": valid })).await.expect(200);
}
