//! Scopes: they limit what tokens grant, even if the agent gets more roles later.

use countersign_tests::{
    Agent, ControlPlane,
    control_plane::text,
    jwt,
    oauth::{code, log_in, refresh},
};
use serde_json::{Value, json};

/// The permissions that a verification of the access token in a token response returns.
async fn permissions(control: &ControlPlane, tokens: &Value) -> Value {
    control.verify(&text(&tokens["access_token"])).await.expect(200)["agent"]["permissions"].clone()
}

#[tokio::test]
async fn a_scope_narrows_a_session_also_after_the_agent_gets_roles() {
    let control = ControlPlane::start().await;
    let agent = Agent::register(&control, "agent").await;
    control.assign(&agent.id, &control.create_role("reader", &["read", "list"]).await).await;
    let service = control.service();
    let login =
        async |scope: &str| log_in(&control, &agent, &[("resource", service), ("scope", scope)]).await.expect(200);

    let wide = login("").await;
    assert_eq!(wide["scope"], "list read", "an empty parameter counts as absent");
    let wide_claims = jwt::claims(&text(&wide["access_token"]));
    assert_eq!((&wide_claims["aud"], &wide_claims["client_id"]), (&json!(service), &json!(agent.id)));
    assert_eq!((&wide_claims["scope"], wide_claims.get("requested_scope")), (&json!("list read"), None));

    let narrow = login("read write openid").await;
    assert_eq!(narrow["scope"], "read", "permissions that the agent does not have are ignored");
    let claims = jwt::claims(&text(&narrow["access_token"]));
    assert_eq!((&claims["scope"], &claims["permissions"]), (&json!("read"), &json!(["read"])));
    assert_eq!((&claims["requested_scope"], &claims["aud"]), (&json!("openid read write"), &json!(service)));
    let nothing = login("admin").await;
    assert_eq!(nothing["scope"], "");
    for (tokens, expected) in [(&wide, json!(["list", "read"])), (&narrow, json!(["read"])), (&nothing, json!([]))] {
        assert_eq!(permissions(&control, tokens).await, expected);
    }

    control.assign(&agent.id, &control.create_role("writer", &["write", "delete"]).await).await;
    assert_eq!(permissions(&control, &wide).await, json!(["delete", "list", "read", "write"]));
    assert_eq!(
        permissions(&control, &narrow).await,
        json!(["read", "write"]),
        "what was asked for and is permitted now"
    );
    assert_eq!(permissions(&control, &nothing).await, json!([]));
    let next = refresh(&control, &text(&narrow["refresh_token"]), &[]).await.expect(200);
    assert_eq!(next["scope"], "read write");
    assert_eq!(permissions(&control, &next).await, json!(["read", "write"]));
    let asked_for_more = [("scope", "write delete list")];
    let next = refresh(&control, &text(&next["refresh_token"]), &asked_for_more).await.expect(200);
    assert_eq!(next["scope"], "write", "a refresh can narrow the scope and not widen it");
    assert_eq!(permissions(&control, &next).await, json!(["write"]));
    let next = refresh(&control, &text(&next["refresh_token"]), &[]).await.expect(200);
    assert_eq!(next["scope"], "read write", "the scope of a refresh is that of one token");
    let again = refresh(&control, &text(&wide["refresh_token"]), &[]).await.expect(200);
    assert_eq!(jwt::claims(&text(&again["access_token"]))["scope"], "delete list read write");
    assert!(jwt::claims(&agent.token().await).get("scope").is_none(), "only OAuth clients get the claim");
    // `/auth/refresh` has no scope parameter, and keeps the scope of the session.
    let next = control.api.post("/auth/refresh", json!({ "refreshToken": next["refresh_token"] })).await.expect(200);
    assert_eq!(
        control.verify(&text(&next["accessToken"])).await.expect(200)["agent"]["permissions"],
        json!(["read", "write"])
    );
}

#[tokio::test]
async fn text_that_is_no_scope_is_refused() {
    let control = ControlPlane::start().await;
    let agent = Agent::register(&control, "agent").await;
    let too_long = "a".repeat(2049);
    for scope in ["a  b", " a", "a\"b", "a\\b", "é", &too_long] {
        let refused = log_in(&control, &agent, &[("scope", scope)]).await;
        assert_eq!(code(&refused), (400, "invalid_scope"), "{scope}");
    }
}
