//! Introspection (RFC 7662) and revocation (RFC 7009) by OAuth clients.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use countersign_tests::{
    Agent, ControlPlane, HttpResponse,
    control_plane::text,
    jwt,
    oauth::{code, log_in, post_form, post_form_as, refresh, refusal},
};
use serde_json::json;

fn basic(id: &str, key: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{id}:{key}")))
}

async fn introspect(control: &ControlPlane, token: &str) -> HttpResponse {
    let authorization = basic(control.service(), control.key());
    post_form_as(&control.api, "/oauth/introspect", &[("token", token)], Some(&authorization)).await
}

#[tokio::test]
async fn introspection_gives_the_verdict_of_a_verification() {
    let control = ControlPlane::start().await;
    let agent = Agent::register(&control, "agent").await;
    control.assign(&agent.id, &control.create_role("reader", &["read", "list"]).await).await;
    let service = control.service();
    let tokens = log_in(&control, &agent, &[("resource", service), ("scope", "read write")]).await.expect(200);
    let token = text(&tokens["access_token"]);
    let claims = jwt::claims(&token);
    let active = introspect(&control, &token).await;
    assert_eq!(active.header("cache-control"), "no-store");
    let expected = json!({
        "active": true, "scope": "read", "client_id": agent.id, "sub": agent.id, "aud": service, "iss": claims["iss"],
        "exp": claims["exp"], "iat": claims["iat"], "jti": claims["jti"], "token_type": "Bearer", "name": "agent",
        "roles": ["reader"], "permissions": ["read"], "trustScore": claims["trustScore"],
    });
    assert_eq!(active.expect(200), expected);
    control.assign(&agent.id, &control.create_role("writer", &["write"]).await).await;
    assert_eq!(introspect(&control, &token).await.expect(200)["scope"], "read write", "the roles are those of now");

    let inactive = json!({ "active": false });
    let (other, _) = control.create_service(json!({ "name": "other" })).await;
    let of_other = text(&log_in(&control, &agent, &[("resource", &other)]).await.expect(200)["access_token"]);
    for token in [of_other.as_str(), "nonsense", &text(&tokens["refresh_token"])] {
        assert_eq!(introspect(&control, token).await.expect(200), inactive, "{token}");
    }
    control.set_status(&agent.id, "suspended").await.expect(200);
    assert_eq!(introspect(&control, &token).await.expect(200), inactive);
    control.set_status(&agent.id, "active").await.expect(200);
    let token = text(&log_in(&control, &agent, &[("resource", service)]).await.expect(200)["access_token"]);
    assert_eq!(introspect(&control, &token).await.expect(200)["active"], true);
    control.revoke_token(&token).await;
    assert_eq!(introspect(&control, &token).await.expect(200), inactive);
}

#[tokio::test]
async fn introspection_of_an_unbound_token_shows_the_roles_at_the_service() {
    let control = ControlPlane::start().await;
    let agent = Agent::register(&control, "agent").await;
    control.assign(&agent.id, &control.create_role("reader", &["read"]).await).await;
    let (other, key) = control.create_service(json!({ "name": "other" })).await;
    let role = json!({ "name": "writer", "permissions": ["write"] });
    let created = control.api.send_as(&key, "POST", &format!("/services/{other}/roles"), role).await.expect(201);
    let assignment = json!({ "roleId": created["roleId"] });
    let path = format!("/services/{other}/agents/{}/roles", agent.id);
    control.api.send_as(&key, "POST", &path, assignment).await.expect(200);

    let tokens = log_in(&control, &agent, &[]).await.expect(200);
    assert_eq!(tokens.get("scope"), None, "the response names no service's permissions");
    let token = text(&tokens["access_token"]);
    let active = introspect(&control, &token).await.expect(200);
    assert_eq!((&active["aud"], &active["roles"]), (&active["iss"], &json!(["reader"])));
    assert_eq!((&active["scope"], &active["permissions"]), (&json!("read"), &json!(["read"])));
    let of_other = control.verify_at(&other, &key, &token).await.expect(200);
    assert_eq!(of_other["agent"]["roles"], json!(["writer"]));
}

#[tokio::test]
async fn only_services_may_introspect() {
    let control = ControlPlane::start().await;
    let token = Agent::register(&control, "agent").await.token().await;
    let (service, key) = (control.service(), control.key());
    let sync_key = control.create_key(service, "sync").await;
    let (other, other_key) = control.create_service(json!({ "name": "other" })).await;
    let form = [("token", token.as_str())];
    let encoded_id = service.replace('_', "%5F");
    for authorization in [basic(service, key), basic(&encoded_id, key), basic(service, &sync_key)] {
        post_form_as(&control.api, "/oauth/introspect", &form, Some(&authorization)).await.expect(200);
    }
    for authorization in [
        basic(service, "wrong"),
        basic(service, &other_key),
        basic(&other, key),
        basic("", key),
        "Bearer svc_sk_wrong".to_owned(),
        "Basic".to_owned(),
    ] {
        let refused = post_form_as(&control.api, "/oauth/introspect", &form, Some(&authorization)).await;
        assert_eq!(code(&refused), (401, "invalid_client"), "{authorization}");
        let scheme = if authorization == "Bearer svc_sk_wrong" { "Bearer" } else { "Basic" };
        assert_eq!(refused.header("www-authenticate"), format!("{scheme} realm=\"countersign\""), "{authorization}");
    }
    let with = |id, secret| [("token", token.as_str()), ("client_id", id), ("client_secret", secret)];
    post_form(&control.api, "/oauth/introspect", &with(service, key)).await.expect(200);
    for (id, secret) in [(service, "wrong"), (service, other_key.as_str()), (other.as_str(), key), (service, "")] {
        let refused = post_form(&control.api, "/oauth/introspect", &with(id, secret)).await;
        assert_eq!(code(&refused), (401, "invalid_client"), "{id}");
        assert_eq!(refused.header("www-authenticate"), "", "{id}");
    }
    let bearer = format!("Bearer {key}");
    let introspect =
        async |form: &[(&str, &str)]| post_form_as(&control.api, "/oauth/introspect", form, Some(&bearer)).await;
    assert_eq!(introspect(&form).await.expect(200)["active"], true);
    introspect(&[("token", &token), ("client_id", service)]).await.expect(200);
    let refused = introspect(&[("token", &token), ("client_id", &other)]).await;
    assert_eq!(refusal(&refused).1, "invalid_client", "the key is of another service");
    let twice = with(service, key);
    let refused = post_form_as(&control.api, "/oauth/introspect", &twice, Some(&basic(service, key))).await;
    assert_eq!(refusal(&refused), (400, "invalid_request", ""));
    let missing = post_form_as(&control.api, "/oauth/introspect", &[], Some(&basic(service, key))).await;
    assert_eq!(refusal(&missing), (400, "invalid_request", ""));
    let json = control.api.request("POST", "/oauth/introspect").header("authorization", basic(service, key));
    let json = HttpResponse::send(json.json(&json!({ "token": token }))).await;
    assert_eq!(refusal(&json), (415, "invalid_request", ""));
}

#[tokio::test]
async fn whoever_has_a_token_can_revoke_it() {
    let control = ControlPlane::start().await;
    let agent = Agent::register(&control, "agent").await;
    let (service, key) = (control.service(), control.key());
    let login = async || log_in(&control, &agent, &[("resource", service)]).await.expect(200);
    for authorization in [None, Some(basic(service, key)), Some(basic(&agent.id, "junk")), Some("Basic !".to_owned())] {
        let tokens = login().await;
        let token = text(&tokens["access_token"]);
        let form = [("token", token.as_str()), ("token_type_hint", "access_token")];
        post_form_as(&control.api, "/oauth/revoke", &form, authorization.as_deref()).await.expect(200);
        assert_eq!(control.verify(&token).await.error().2, "token_revoked");
        let refresh_token = text(&tokens["refresh_token"]);
        refresh(&control, &refresh_token, &[]).await.expect(200);
    }
    let token = text(&login().await["access_token"]);
    let wrong = [("token", token.as_str()), ("client_id", service), ("client_secret", "wrong")];
    let refused = post_form(&control.api, "/oauth/revoke", &wrong).await;
    assert_eq!(code(&refused), (401, "invalid_client"));
    control.verify(&token).await.expect(200);
    post_form(&control.api, "/oauth/revoke", &[("token", "nonsense")]).await.expect(200);
    let tokens = login().await;
    post_form(&control.api, "/oauth/revoke", &[("token", &text(&tokens["refresh_token"]))]).await.expect(200);
    assert_eq!(control.verify(&text(&tokens["access_token"])).await.status, 401, "the session has ended");
}
