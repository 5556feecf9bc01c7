//! Which credentials each route accepts, and who may access which resource.

use countersign_tests::{Agent, ControlPlane, HttpResponse, control_plane::text};
use serde_json::json;

/// A control plane with an agent that has a role. `send` calls routes with an empty body.
struct RouteFixture {
    control: ControlPlane,
    agent: Agent,
    role: String,
}

impl RouteFixture {
    async fn new() -> Self {
        let control = ControlPlane::shared().await;
        let agent = Agent::register(&control, "agent").await;
        let role = control.create_role("reader", &["read"]).await;
        control.assign(&agent.id, &role).await;
        Self { control, agent, role }
    }

    fn key_routes(&self) -> [(&'static str, String); 6] {
        let agent = self.control.path(&format!("/agents/{}", self.agent.id));
        [
            ("POST", self.control.path("/roles")),
            ("GET", self.control.path("/roles")),
            ("DELETE", self.control.path(&format!("/roles/{}", self.role))),
            ("GET", agent.clone()),
            ("POST", format!("{agent}/roles")),
            ("DELETE", format!("{agent}/roles/{}", self.role)),
        ]
    }

    fn verify_route(&self) -> (&'static str, String) {
        ("GET", self.control.path("/verify"))
    }

    fn human_routes(&self) -> [(&'static str, String); 6] {
        [
            ("POST", "/services".to_owned()),
            ("GET", "/services".to_owned()),
            ("GET", self.control.path("/keys")),
            ("POST", self.control.path("/keys")),
            ("DELETE", self.control.path("/keys/key_00000000000000000000000000")),
            ("PUT", format!("/agents/{}/status", self.agent.id)),
        ]
    }

    async fn send(&self, credential: Option<&str>, (method, path): &(&str, String)) -> (u16, String) {
        let request = self.control.api.request(method, path).json(&json!({}));
        let request = credential.into_iter().fold(request, reqwest::RequestBuilder::bearer_auth);
        let response = HttpResponse::send(request).await;
        assert!(!response.header("x-request-id").is_empty());
        (response.status, response.text("/error/details/reason").to_owned())
    }
}

#[tokio::test]
async fn key_routes_refuse_every_other_credential() {
    let fixture = RouteFixture::new().await;
    let control = &fixture.control;
    let (_, other_key) = control.create_service(json!({ "name": "other" })).await;
    let (sync, token) = (control.create_key(control.service(), "sync").await, fixture.agent.token().await);
    let (start, last) = control.key().split_at(control.key().len() - 1);
    let wrong_key = format!("{start}{}", if last == "0" { "1" } else { "0" });
    for route in fixture.key_routes().iter().chain([&fixture.verify_route()]) {
        assert_eq!(fixture.send(None, route).await, (401, "service_key_missing".into()), "{route:?}");
        assert_eq!(fixture.send(Some(&other_key), route).await, (403, "not_yours".into()), "{route:?}");
        assert_eq!(fixture.send(Some(&token), route).await.0, 401, "an agent's token at {route:?}");
        assert_eq!(fixture.send(Some(&wrong_key), route).await, (401, "service_key_invalid".into()), "{route:?}");
        assert_eq!(
            fixture.send(Some(control.service()), route).await,
            (401, "service_key_invalid".into()),
            "a service id is not a key"
        );
    }
    for route in &fixture.key_routes() {
        assert_eq!(fixture.send(Some(&sync), route).await, (403, "scope_insufficient".into()), "{route:?}");
    }
    assert_eq!(
        fixture.send(Some(&sync), &fixture.verify_route()).await,
        (401, "token_missing".into()),
        "a sync key may verify tokens"
    );
}

#[tokio::test]
async fn human_routes_refuse_every_other_credential() {
    let fixture = RouteFixture::new().await;
    let (other_user, token) = (fixture.control.mint_human("stranger"), fixture.agent.token().await);
    for route in &fixture.human_routes() {
        assert_eq!(fixture.send(None, route).await, (401, "human_token_missing".into()), "{route:?}");
        for credential in [fixture.control.key(), token.as_str(), "nonsense", "a.b.c"] {
            assert_eq!(fixture.send(Some(credential), route).await, (401, "human_token_invalid".into()), "{route:?}");
        }
    }
    let [_, _, list_keys, create_key, revoke_key, set_status] = fixture.human_routes();
    for route in [list_keys, create_key, revoke_key] {
        assert_eq!(fixture.send(Some(&other_user), &route).await, (403, "not_yours".into()), "{route:?}");
    }
    let suspend =
        fixture.control.api.send_as(&other_user, "PUT", &set_status.1, json!({ "status": "suspended" })).await;
    assert_eq!(suspend.error(), (403, "INSUFFICIENT_PERMISSIONS", "not_yours"));
}

#[tokio::test]
async fn resources_of_other_services_are_refused_without_revealing_their_existence() {
    let fixture = RouteFixture::new().await;
    let control = &fixture.control;
    let (other, other_key) = control.create_service(json!({ "name": "other" })).await;
    let unknown = other.replace("svc_0", "svc_1");
    for service in [other.as_str(), &unknown] {
        let route = ("GET", format!("/services/{service}/roles"));
        assert_eq!(fixture.send(Some(control.key()), &route).await, (403, "not_yours".into()), "{service}");
    }
    let malformed = control.api.get_as(control.key(), "/services/nonsense/roles").await;
    assert_eq!((malformed.status, malformed.text("/error/code")), (404, "SERVICE_NOT_FOUND"));
    let role = json!({ "name": "theirs", "permissions": [] });
    let created = control.api.send_as(&other_key, "POST", &format!("/services/{other}/roles"), role).await.expect(201);
    let [.., assign, _] = fixture.key_routes();
    let assigned = control.api.send_as(control.key(), "POST", &assign.1, json!({ "roleId": created["roleId"] })).await;
    assert_eq!((assigned.status, assigned.text("/error/code")), (404, "ROLE_NOT_FOUND"));
}

#[tokio::test]
async fn owner_manages_services_and_agents_with_a_human_token() {
    let control = ControlPlane::shared().await;
    let (alice, bob) = (control.mint_human("alice"), control.mint_human("bob"));
    let created = control.api.send_as(&alice, "POST", "/services", json!({ "name": "Alice's" })).await.expect(201);
    let service = text(&created["serviceId"]);
    let role = json!({ "name": "reader", "permissions": ["read"] });
    let roles = format!("/services/{service}/roles");
    control.api.send_as(&alice, "POST", &roles, role.clone()).await.expect(201);
    assert_eq!(control.api.send_as(&bob, "POST", &roles, role).await.error().0, 403);
    let key = countersign_client::PrivateKey::generate().public_pem().unwrap();
    let body = json!({ "email": "a@example.org", "name": "Agent", "publicKey": key });
    let agent = text(&control.api.send_as(&alice, "POST", "/auth/register", body).await.expect(201)["agentId"]);
    let status = format!("/agents/{agent}/status");
    assert_eq!(control.api.send_as(&bob, "PUT", &status, json!({ "status": "suspended" })).await.status, 403);
    control.api.send_as(&alice, "PUT", &status, json!({ "status": "suspended" })).await.expect(200);
    let refused = control.api.post("/auth/challenge", json!({ "agentId": agent })).await;
    assert_eq!(refused.error(), (403, "INSUFFICIENT_PERMISSIONS", "agent_suspended"));
}

#[tokio::test]
async fn owner_of_an_agent_reads_it_and_other_users_do_not() {
    let control = ControlPlane::shared().await;
    let (alice, bob) = (control.mint_human("alice"), control.mint_human("bob"));
    let key = countersign_client::PrivateKey::generate().public_pem().unwrap();
    let body = json!({ "email": "a@example.org", "name": "Agent", "publicKey": key });
    let agent = text(&control.api.send_as(&alice, "POST", "/auth/register", body).await.expect(201)["agentId"]);
    let path = control.path(&format!("/agents/{agent}"));
    for token in [alice.as_str(), control.human(), control.key()] {
        assert_eq!(control.api.get_as(token, &path).await.expect(200)["id"], agent.as_str());
    }
    let unknown = control.path(&format!("/agents/{}", agent.replace("agent_0", "agent_1")));
    for (token, path) in [(&bob, &path), (&bob, &unknown), (&alice, &unknown)] {
        assert_eq!(
            control.api.get_as(token, path).await.error(),
            (403, "INSUFFICIENT_PERMISSIONS", "not_yours"),
            "{path}"
        );
    }
    assert_eq!(control.api.get_as(control.human(), &unknown).await.text("/error/code"), "AGENT_NOT_FOUND");
    let other_service_path = format!("/services/{}/agents/{agent}", control.service().replace("svc_0", "svc_1"));
    assert_eq!(control.api.get_as(&alice, &other_service_path).await.text("/error/code"), "SERVICE_NOT_FOUND");
}

#[tokio::test]
async fn forbidden_responses_contain_required_and_actual_access() {
    let control = ControlPlane::shared().await;
    let (bob, sync) = (control.mint_human("bob"), control.create_key(control.service(), "sync").await);
    let (other, other_key) = control.create_service(json!({ "name": "other" })).await;
    let details = async |credential: &str, path: &str| {
        let mut details = control.api.get_as(credential, path).await.expect(403)["error"]["details"].take();
        let issuer = details["actual"].as_object_mut().unwrap().remove("issuer");
        assert_eq!(
            issuer.is_some(),
            details["actual"]["subject"].is_string(),
            "`actual` has an issuer only for a human user"
        );
        details
    };
    let (service, roles) = (control.service(), control.path("/roles"));
    let scope =
        json!({ "reason": "scope_insufficient", "required": { "scope": "full" }, "actual": { "scope": "sync" } });
    assert_eq!(details(&sync, &roles).await, scope);
    assert_eq!(details(&sync, "/status").await, scope);
    let not_yours =
        json!({ "reason": "not_yours", "required": { "serviceId": service }, "actual": { "serviceId": other } });
    assert_eq!(details(&other_key, &roles).await, not_yours);
    assert_eq!(details(&other_key, &control.path("/verify")).await, not_yours);
    let (owner_or_admin, bob_details) = (json!({ "access": ["owner", "administrator"] }), json!({ "subject": "bob" }));
    let owner = json!({ "reason": "not_yours", "required": owner_or_admin, "actual": bob_details });
    for path in [&roles, &control.path("/keys"), &format!("/audit?serviceId={service}")] {
        assert_eq!(details(&bob, path).await, owner, "{path}");
    }
    let admin =
        json!({ "reason": "admin_required", "required": { "access": ["administrator"] }, "actual": bob_details });
    assert_eq!(details(&bob, "/signing-keys").await, admin);
}

#[tokio::test]
async fn setting_decides_who_may_create_services() {
    let control = ControlPlane::start_with(&["services.created_by=admin"]).await;
    let body = json!({ "name": "a service" });
    let refused = control.api.send_as(&control.mint_human("alice"), "POST", "/services", body.clone()).await;
    assert_eq!((refused.status, refused.error().2), (403, "admin_required"), "{refused:?}");
    assert_eq!(refused.body["error"]["details"]["setting"], "services.created_by");
    control.api.send_as(control.human(), "POST", "/services", body).await.expect(201);
}
