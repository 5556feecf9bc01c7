//! Deleted roles and revoked tokens and keys at the API. `parity.rs` tests that the sidecar agrees.

#![expect(clippy::expect_used, reason = "a test says what it expects")]

use countersign_tests::{Agent, ControlPlane, HttpResponse, control_plane::text};
use secrecy::ExposeSecret;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tokio::task::JoinSet;

const CONCURRENT: usize = 24;

/// Counts each status and error code.
async fn count_outcomes(mut attempts: JoinSet<HttpResponse>) -> BTreeMap<String, usize> {
    let mut outcomes = BTreeMap::new();
    while let Some(response) = attempts.join_next().await {
        let response = response.expect("no attempt panics");
        *outcomes
            .entry(format!("{} {}", response.status, response.text("/error/code")).trim().to_owned())
            .or_default() += 1;
    }
    outcomes
}

#[tokio::test]
async fn deleting_a_role_removes_its_assignments() {
    let control = ControlPlane::start().await;
    let agent = Agent::register(&control, "agent").await;
    let (reader, stays) =
        (control.create_role("reader", &["read"]).await, control.create_role("stays", &["stay"]).await);
    control.assign(&agent.id, &reader).await;
    control.assign(&agent.id, &stays).await;
    let token = agent.token().await;
    assert_eq!(control.delete_role(&reader).await.expect(200), json!({ "deleted": true }));

    let verified = control.verify(&token).await.expect(200);
    assert_eq!((&verified["agent"]["roles"], &verified["agent"]["permissions"]), (&json!(["stays"]), &json!(["stay"])));
    let listed = control.api.get_as(control.key(), &control.path("/roles")).await.expect(200);
    let names: Vec<_> = listed["data"].as_array().expect("a list").iter().map(|role| &role["name"]).collect();
    assert_eq!(names, ["stays"]);
    let of_agent = control.path(&format!("/agents/{}/roles", agent.id));
    let assignment = format!("{of_agent}/{reader}");
    let responses = [
        control.delete_role(&reader).await,
        control.delete_role("role_00000000000000000000000000").await,
        control.delete_role("nonsense").await,
        control.api.send_as(control.key(), "POST", &of_agent, json!({ "roleId": reader })).await,
        control.api.send_as(control.key(), "DELETE", &assignment, json!({})).await,
    ];
    for response in responses {
        assert_eq!((response.status, response.text("/error/code")), (404, "ROLE_NOT_FOUND"));
    }

    let again = control.create_role("reader", &["everything"]).await;
    assert_ne!(again, reader);
    let verified = control.verify(&token).await.expect(200);
    assert_eq!(verified["agent"]["roles"], json!(["stays"]), "a new role with the same name is another role");
    let new = control.verify(&agent.token().await).await.expect(200);
    assert_eq!(new["agent"]["roles"], json!(["stays"]), "the new role is not assigned");
}

#[tokio::test]
async fn only_managers_of_a_service_delete_its_roles() {
    let control = ControlPlane::start().await;
    let (alice, bob) = (control.mint_human("alice"), control.mint_human("bob"));
    let created = control.api.send_as(&alice, "POST", "/services", json!({ "name": "Alice's" })).await.expect(201);
    let roles = format!("/services/{}/roles", text(&created["serviceId"]));
    let new_role = async |name: &str| {
        let body = json!({ "name": name, "permissions": ["read"] });
        text(&control.api.send_as(&alice, "POST", &roles, body).await.expect(201)["roleId"])
    };
    let (first, second) = (new_role("first").await, new_role("second").await);
    let delete = async |token: &str, path: String| control.api.send_as(token, "DELETE", &path, json!({})).await;
    let elsewhere = delete(control.key(), control.path(&format!("/roles/{first}"))).await;
    assert_eq!(
        (elsewhere.status, elsewhere.text("/error/code")),
        (404, "ROLE_NOT_FOUND"),
        "the role belongs to another service"
    );
    let refused = delete(&bob, format!("{roles}/{first}")).await;
    assert_eq!(refused.error(), (403, "INSUFFICIENT_PERMISSIONS", "not_yours"));
    let listed = control.api.get_as(&alice, &roles).await.expect(200);
    assert_eq!(listed["data"].as_array().map(Vec::len), Some(2), "no role has been deleted yet");
    delete(&alice, format!("{roles}/{first}")).await.expect(200);
    delete(control.human(), format!("{roles}/{second}")).await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn role_deleted_during_assignments_is_held_by_no_agent() {
    let control = ControlPlane::start().await;
    let agent = Agent::register(&control, "agent").await;
    let role = control.create_role("reader", &["read"]).await;
    let (roles, role_path) =
        (control.path(&format!("/agents/{}/roles", agent.id)), control.path(&format!("/roles/{role}")));
    let (mut assignments, mut deletions) = (JoinSet::new(), JoinSet::new());
    let send = |method, path: &str, body: &Value| {
        HttpResponse::send(control.api.request(method, path).bearer_auth(control.key()).json(body))
    };
    for _ in 0..CONCURRENT {
        assignments.spawn(send("POST", &roles, &json!({ "roleId": role })));
        deletions.spawn(send("DELETE", &role_path, &json!({})));
    }
    let expected = BTreeMap::from([("200".into(), 1), ("404 ROLE_NOT_FOUND".into(), CONCURRENT - 1)]);
    assert_eq!(count_outcomes(deletions).await, expected);
    let assignments = count_outcomes(assignments).await;
    let all_expected = assignments.keys().all(|outcome| ["200", "404 ROLE_NOT_FOUND"].contains(&outcome.as_str()));
    assert!(all_expected, "{assignments:?}");
    assert_eq!(control.verify(&agent.token().await).await.expect(200)["agent"]["roles"], json!([]));
}

#[tokio::test]
async fn revoke_accepts_any_token_and_reveals_nothing() {
    let control = ControlPlane::start().await;
    let agent = Agent::register(&control, "agent").await;
    let (tokens, other) = (agent.login().await, agent.login().await);
    let (access, refresh) = (tokens.access_token.expose_secret(), tokens.refresh_token.expose_secret());
    let (body, signature) = access.rsplit_once('.').expect("a JWT");
    let forged = format!("{body}.{}{}", if signature.starts_with('A') { "B" } else { "A" }, &signature[1..]);
    let last = if refresh.ends_with('0') { "1" } else { "0" };
    let wrong = format!("{}{last}", &refresh[..refresh.len() - 1]);
    for invalid in ["x", " ", "a.b.c", "rf_", &wrong, &forged, control.key(), control.human(), &agent.id, "\u{0}"] {
        control.revoke_token(invalid).await;
    }
    control.verify(access).await.expect(200);
    agent.api.refresh(&tokens).await.expect("the session is still active");

    for bad in
        [json!({}), json!({ "token": null }), json!({ "token": 7 }), json!({ "token": "" }), json!({ "token": [] })]
    {
        let response = control.api.post("/auth/revoke", bad.clone()).await;
        assert_eq!((response.status, response.text("/error/code")), (400, "VALIDATION_ERROR"), "{bad}");
        assert!(!response.text("/error/details/fields/token").is_empty(), "{bad}: {}", response.body);
    }
    let other = other.access_token.expose_secret();
    let misspelt = control.api.post("/auth/revoke", json!({ "token": other, "tokenTypeHint": "access_token" })).await;
    assert_eq!(misspelt.text("/error/details/fields/tokenTypeHint"), "is not a known field");
    control.verify(other).await.expect(200);
    let hinted = json!({ "token": other, "token_type_hint": "refresh_token" });
    control.api.post("/auth/revoke", hinted).await.expect(200);
    let refused = control.verify(other).await;
    assert_eq!(refused.error(), (401, "AUTHENTICATION_FAILED", "token_revoked"), "a wrong hint is ignored");
}

#[tokio::test]
async fn revoke_accepts_the_form_body_of_oauth_clients() {
    let control = ControlPlane::start().await;
    let agent = Agent::register(&control, "agent").await;
    let (first, second) = (agent.token().await, agent.login().await);
    let second = (second.access_token.expose_secret(), second.refresh_token.expose_secret());
    let send = async |content_type: &str, body: String| {
        HttpResponse::send(control.api.request("POST", "/auth/revoke").header("content-type", content_type).body(body))
            .await
    };
    let form = "application/x-www-form-urlencoded";
    for bad in ["", "token=", "token_type_hint=access_token", &format!("token={first}&token={first}"), "{}", "%ff=&=x"]
    {
        let response = send(form, bad.to_owned()).await;
        assert_eq!((response.status, response.text("/error/code")), (400, "VALIDATION_ERROR"), "{bad}");
    }
    assert_eq!(send("text/plain", format!("token={first}")).await.status, 415);
    assert_eq!(send(form, "token=%ff%00+garbage".to_owned()).await.expect(200), json!({}));
    for token in [&first, second.0] {
        control.verify(token).await.expect(200);
    }
    let response = send("Application/X-WWW-Form-Urlencoded; charset=UTF-8", format!("token={first}")).await;
    assert_eq!(response.expect(200), json!({}));
    let body = format!("token_type_hint=refresh_token&client_id=somebody&token={}", second.1.replace('_', "%5f"));
    assert_eq!(send(form, body).await.expect(200), json!({}));
    for token in [&first, second.0] {
        assert_eq!(control.verify(token).await.error(), (401, "AUTHENTICATION_FAILED", "token_revoked"));
    }
}

#[tokio::test]
async fn revoke_accepts_the_longest_token() {
    let control = ControlPlane::start().await;
    let agent = Agent::register(&control, "agent").await;
    let quotes = "\"".repeat(126);
    for number in 10..41 {
        let role = control.create_role(&format!("{}{number}", &quotes[..62]), &[&format!("{quotes}{number}")]).await;
        control.assign(&agent.id, &role).await;
    }
    let token = agent.token().await;
    assert!(token.len() > 16 * 1024, "longer than the limit of other bodies under /auth: {}", token.len());
    control.verify(&token).await.expect(200);
    control.revoke_token(&token).await;
    assert_eq!(control.verify(&token).await.error(), (401, "AUTHENTICATION_FAILED", "token_revoked"));
    let body = json!({ "token": "x".repeat(64 * 1024) });
    assert_eq!(control.api.post("/auth/revoke", body).await.status, 413);
}

#[tokio::test]
async fn revoking_a_key_of_another_service_returns_404() {
    let control = ControlPlane::start().await;
    let (other, _) = control.create_service(json!({ "name": "other" })).await;
    let key = control.create_key(&other, "full").await;
    let id = format!("key_{}", &key["svc_sk_".len()..][..26]);
    let revoke = async |service: &str, id: &str| {
        let path = format!("/services/{service}/keys/{id}");
        control.api.send_as(control.human(), "DELETE", &path, json!({})).await
    };
    for id in [id.as_str(), "key_00000000000000000000000000"] {
        let not_found = revoke(control.service(), id).await;
        assert_eq!((not_found.status, not_found.text("/error/code")), (404, "NOT_FOUND"), "{id}");
    }
    let roles = format!("/services/{other}/roles");
    control.api.get_as(&key, &roles).await.expect(200);
    for first in [true, false] {
        assert_eq!(revoke(&other, &id).await.expect(200)["revoked"], first);
    }
    control.api.get_as(&key, &roles).await.expect(401);
}
