//! Deletion of roles and revocation of tokens and API keys in the API. `edge/parity.rs` tests that the sidecar refuses
//! and allows the same requests as the API.

use countersign_tests::{
    Agent, ControlPlane, HttpResponse, Tenant,
    control_plane::text,
    http::{items, texts},
};
use futures_util::future::join_all;
use secrecy::ExposeSecret;
use serde_json::json;
use std::collections::BTreeMap;

const CONCURRENT_REQUESTS: usize = 24;

/// Counts the responses with each status and error code.
fn count_outcomes(responses: &[HttpResponse]) -> BTreeMap<String, usize> {
    let mut outcomes = BTreeMap::new();
    for response in responses {
        let (status, code) = response.code();
        *outcomes.entry(format!("{status} {code}").trim().to_owned()).or_default() += 1;
    }
    outcomes
}

#[tokio::test]
async fn deleting_a_role_removes_its_assignments() {
    let control = ControlPlane::shared().await;
    let agent = Agent::register(&control, "agent").await;
    let (reader, remaining) =
        (control.create_role("reader", &["read"]).await, control.create_role("remaining", &["stay"]).await);
    control.assign(&agent.id, &reader).await;
    control.assign(&agent.id, &remaining).await;
    let token = agent.token().await;
    assert_eq!(control.delete_role(&reader).await.expect(200)["deleted"], true);

    let verified = control.verify(&token).await.expect(200);
    assert_eq!(
        (&verified["agent"]["roles"], &verified["agent"]["permissions"]),
        (&json!(["remaining"]), &json!(["stay"]))
    );
    let listed = control.get("/roles").await.expect(200);
    assert_eq!(texts(&listed, "name"), ["remaining"]);
    let roles = format!("/agents/{}/roles", agent.id);
    let responses = [
        control.delete_role(&reader).await,
        control.delete_role("role_00000000000000000000000000").await,
        control.delete_role("nonsense").await,
        control.send("POST", &roles, json!({ "roleId": reader })).await,
        control.send("DELETE", &format!("{roles}/{reader}"), json!({})).await,
    ];
    for response in responses {
        assert_eq!(response.code(), (404, "ROLE_NOT_FOUND"));
    }
}

#[tokio::test]
async fn only_managers_of_a_service_delete_its_roles() {
    let control = ControlPlane::shared().await;
    let (alice, bob) = (Tenant::new(&control, "alice").await, control.mint_human("bob"));
    let create_role = async |name: &str| {
        let body = json!({ "name": name, "permissions": ["read"] });
        text(&alice.send("POST", "/roles", body).await.expect(201)["roleId"])
    };
    let [first, second] = [create_role("first").await, create_role("second").await];
    let of_another_service = control.delete_role(&first).await;
    assert_eq!(of_another_service.code(), (404, "ROLE_NOT_FOUND"), "the role belongs to another service");
    let delete =
        async |token: &str, role: &str| control.api.delete_as(token, &alice.path(&format!("/roles/{role}"))).await;
    assert_eq!(delete(&bob, &first).await.error(), (403, "INSUFFICIENT_PERMISSIONS", "not_yours"));
    assert_eq!(items(&alice.get("/roles").await.expect(200)).len(), 2, "no role has been deleted yet");
    delete(&alice.human, &first).await.expect(200);
    delete(control.human(), &second).await.expect(200);
}

#[tokio::test]
async fn role_deleted_during_assignments_is_assigned_to_no_agent() {
    let control = ControlPlane::shared().await;
    let agent = Agent::register(&control, "agent").await;
    let role = control.create_role("reader", &["read"]).await;
    let roles = format!("/agents/{}/roles", agent.id);
    let assign = |_| control.send("POST", &roles, json!({ "roleId": role }));
    let (assignments, deletions) = tokio::join!(
        join_all((0..CONCURRENT_REQUESTS).map(assign)),
        join_all((0..CONCURRENT_REQUESTS).map(|_| control.delete_role(&role)))
    );
    let expected = BTreeMap::from([("200".into(), 1), ("404 ROLE_NOT_FOUND".into(), CONCURRENT_REQUESTS - 1)]);
    assert_eq!(count_outcomes(&deletions), expected);
    let assignments = count_outcomes(&assignments);
    let all_expected = assignments.keys().all(|outcome| ["200", "404 ROLE_NOT_FOUND"].contains(&outcome.as_str()));
    assert!(all_expected, "{assignments:?}");
    assert_eq!(control.verify(&agent.token().await).await.expect(200)["agent"]["roles"], json!([]));
}

#[tokio::test]
async fn revoke_returns_200_for_valid_and_invalid_tokens() {
    let control = ControlPlane::shared().await;
    let agent = Agent::register(&control, "agent").await;
    let (tokens, other) = (agent.login().await, agent.login().await);
    let (access, refresh) = (tokens.access_token.expose_secret(), tokens.refresh_token.expose_secret());
    let (body, signature) = access.rsplit_once('.').expect("the token is a JWT");
    let forged = format!("{body}.{}{}", if signature.starts_with('A') { "B" } else { "A" }, &signature[1..]);
    let last = if refresh.ends_with('0') { "1" } else { "0" };
    let wrong_token = format!("{}{last}", &refresh[..refresh.len() - 1]);
    for invalid in ["x", " ", "a.b.c", "rf_", &wrong_token, &forged, control.key(), control.human(), &agent.id, "\u{0}"]
    {
        control.revoke_token(invalid).await;
    }
    control.verify(access).await.expect(200);
    agent.api().refresh(&tokens.refresh_token).await.expect("the session is still active");

    for invalid_body in
        [json!({}), json!({ "token": null }), json!({ "token": 7 }), json!({ "token": "" }), json!({ "token": [] })]
    {
        let response = control.api.post("/auth/revoke", invalid_body.clone()).await;
        assert_eq!(response.code(), (400, "VALIDATION_ERROR"), "{invalid_body}");
        assert!(!response.text("/error/details/fields/token").is_empty(), "{invalid_body}: {}", response.body);
    }
    let other = other.access_token.expose_secret();
    let misspelt = control.api.post("/auth/revoke", json!({ "token": other, "tokenTypeHint": "access_token" })).await;
    assert_eq!(misspelt.text("/error/details/fields/tokenTypeHint"), "is not a known field");
    control.verify(other).await.expect(200);
    let body_with_wrong_hint = json!({ "token": other, "token_type_hint": "refresh_token" });
    control.api.post("/auth/revoke", body_with_wrong_hint).await.expect(200);
    let refused = control.verify(other).await;
    assert_eq!(refused.error(), (401, "AUTHENTICATION_FAILED", "token_revoked"), "a wrong hint is ignored");
}

#[tokio::test]
async fn revoke_accepts_the_form_body_of_oauth_clients() {
    let control = ControlPlane::shared().await;
    let agent = Agent::register(&control, "agent").await;
    let (first, second) = (agent.token().await, agent.login().await);
    let second = (second.access_token.expose_secret(), second.refresh_token.expose_secret());
    let send = async |content_type: &str, body: String| {
        HttpResponse::send(control.api.request("POST", "/auth/revoke").header("content-type", content_type).body(body))
            .await
    };
    let form = "application/x-www-form-urlencoded";
    for invalid_body in
        ["", "token=", "token_type_hint=access_token", &format!("token={first}&token={first}"), "{}", "%ff=&=x"]
    {
        let response = send(form, invalid_body.to_owned()).await;
        assert_eq!(response.code(), (400, "VALIDATION_ERROR"), "{invalid_body}");
    }
    assert_eq!(send("text/plain", format!("token={first}")).await.status, 415);
    assert!(send(form, "token=%ff%00+garbage".to_owned()).await.expect(200)["revision"].is_u64());
    for token in [&first, second.0] {
        control.verify(token).await.expect(200);
    }
    let response = send("Application/X-WWW-Form-Urlencoded; charset=UTF-8", format!("token={first}")).await;
    assert!(response.expect(200)["revision"].is_u64());
    let body = format!("token_type_hint=refresh_token&client_id=client&token={}", second.1.replace('_', "%5f"));
    assert!(send(form, body).await.expect(200)["revision"].is_u64());
    for token in [&first, second.0] {
        assert_eq!(control.verify(token).await.error(), (401, "AUTHENTICATION_FAILED", "token_revoked"));
    }
}

#[tokio::test]
async fn revoke_accepts_the_longest_token() {
    let control = ControlPlane::shared().await;
    let agent = Agent::register(&control, "agent").await;
    let quotes = "\"".repeat(126);
    for number in 10..41 {
        control
            .assign_new_role(&agent.id, &format!("{}{number}", &quotes[..62]), &[&format!("{quotes}{number}")])
            .await;
    }
    let token = agent.token().await;
    assert!(token.len() > 16 * 1024, "the token is longer than other bodies under /auth may be: {}", token.len());
    control.verify(&token).await.expect(200);
    control.revoke_token(&token).await;
    assert_eq!(control.verify(&token).await.error(), (401, "AUTHENTICATION_FAILED", "token_revoked"));
    let body = json!({ "token": "x".repeat(64 * 1024) });
    assert_eq!(control.api.post("/auth/revoke", body).await.status, 413);
}

#[tokio::test]
async fn revoking_a_key_of_another_service_returns_404() {
    let control = ControlPlane::shared().await;
    let (other, _) = control.create_service(json!({ "name": "other" })).await;
    let key = control.create_key(&other, "full").await;
    let id = format!("key_{}", &key["svc_sk_".len()..][..26]);
    let revoke = async |service: &str, id: &str| {
        let path = format!("/services/{service}/keys/{id}");
        control.api.delete_as(control.human(), &path).await
    };
    for id in [id.as_str(), "key_00000000000000000000000000"] {
        let not_found = revoke(control.service(), id).await;
        assert_eq!(not_found.code(), (404, "NOT_FOUND"), "{id}");
    }
    let roles = format!("/services/{other}/roles");
    control.api.get_as(&key, &roles).await.expect(200);
    for first in [true, false] {
        assert_eq!(revoke(&other, &id).await.expect(200)["revoked"], first);
    }
    control.api.get_as(&key, &roles).await.expect(401);
}
