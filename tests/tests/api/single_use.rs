//! Tests that a refresh token has at most one successor, even with concurrent requests and across a crash.

use countersign_tests::{Agent, ControlPlane, HttpResponse, agent::forged_refresh_token, control_plane::text};
use futures_util::future::join_all;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const ATTEMPTS: usize = 50;
const ROUNDS: usize = 200;

/// The control plane is killed and restarted after this many rounds.
const ROUNDS_PER_RESTART: usize = 50;

/// Sends the same request many times concurrently. Returns how many requests had each outcome, and the bodies of
/// successful responses.
async fn send_concurrently(control: &ControlPlane, path: &str, body: &Value) -> (BTreeMap<String, usize>, Vec<Value>) {
    let send = |_| HttpResponse::send(control.api.request("POST", path).json(body));
    let (mut outcomes, mut succeeded) = (BTreeMap::new(), Vec::new());
    for response in join_all((0..ATTEMPTS).map(send)).await {
        let (status, reason) = response.reason();
        *outcomes.entry(format!("{status} {reason}").trim().to_owned()).or_default() += 1;
        if status == 200 {
            succeeded.push(response.body);
        }
    }
    (outcomes, succeeded)
}

#[tokio::test]
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
        let login = agent.signed_challenge(&control.api).await;
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
async fn wrong_refresh_tokens_change_nothing() {
    let control = ControlPlane::start().await;
    let agent = Agent::register(&control, "agent").await;
    let login = agent.signed_challenge(&control.api).await;
    let pair = control.api.post("/auth/authenticate", login).await.expect(200);
    let (valid, access) = (text(&pair["refreshToken"]), text(&pair["accessToken"]));
    let last = if valid.ends_with('0') { "1" } else { "0" };
    let wrong_token = format!("{}{last}", &valid[..valid.len() - 1]);
    let forged = forged_refresh_token(&valid);
    for invalid in [
        wrong_token.as_str(),
        &forged,
        "",
        "rf_",
        &valid.to_uppercase(),
        &valid[..valid.len() - 2],
        control.key(),
        &access,
    ] {
        let refused = control.api.post("/auth/refresh", json!({ "refreshToken": invalid })).await;
        assert_eq!(refused.error(), (401, "AUTHENTICATION_FAILED", "refresh_invalid"), "{invalid}");
    }
    control.api.post("/auth/refresh", json!({ "refreshToken": valid })).await.expect(200);
}
