//! Responses and errors of the HTTP API.

use countersign_tests::{Agent, ControlPlane, HttpResponse, control_plane::text, engines, http::HttpClient};
use insta::assert_json_snapshot;
use serde_json::{Value, json};

#[tokio::test]
async fn registration_is_idempotent_and_the_record_is_readable() {
    let control = ControlPlane::shared().await;
    let key = countersign_client::PrivateKey::generate().public_pem().unwrap();
    let body = json!({ "email": "a@example.org", "name": "Agent", "publicKey": key, "metadata": { "team": "blue" } });
    let first = control.api.post("/auth/register", body.clone()).await.expect(201);
    assert_json_snapshot!(first, { ".agentId" => "[agent]", ".publicKeyHash" => "[hash]" }, @r#"
    {
      "agentId": "[agent]",
      "publicKeyHash": "[hash]",
      "status": "active"
    }
    "#);
    let repeated = control.api.post("/auth/register", body.clone()).await.expect(201);
    assert_eq!(repeated, first, "the same owner, name and key return the same agent");
    for (field, other) in [("name", "Another"), ("email", "b@example.org")] {
        let mut body = body.clone();
        body[field] = json!(other);
        let other = control.api.post("/auth/register", body).await.expect(201);
        assert_ne!(
            other["agentId"], first["agentId"],
            "another {field} registers another agent, so a copied public key does not block its owner"
        );
    }
    let path = control.path(&format!("/agents/{}", text(&first["agentId"])));
    let record = control.api.get_as(control.key(), &path).await.expect(200);
    let redactions =
        &[(".id", "[agent]"), (".publicKeyHash", "[hash]"), (".createdAt", "[time]"), (".updatedAt", "[time]")];
    assert_json_snapshot!(redact(record, redactions), @r#"
    {
      "createdAt": "[time]",
      "id": "[agent]",
      "lastSeenAt": null,
      "metadata": {
        "team": "blue"
      },
      "name": "Agent",
      "publicKeyHash": "[hash]",
      "status": "active",
      "trustScore": 50,
      "updatedAt": "[time]"
    }
    "#);
}

#[tokio::test]
async fn roles_are_created_listed_assigned_and_revoked() {
    let control = ControlPlane::shared().await;
    let agent = Agent::register(&control, "agent").await;
    let body = json!({ "name": "reader", "description": "Reads", "permissions": ["read", "list", "read"] });
    let created = control.api.send_as(control.key(), "POST", &control.path("/roles"), body.clone()).await.expect(201);
    assert_eq!((&created["name"], &created["permissions"]), (&json!("reader"), &json!(["list", "read"])));
    let duplicate = control.api.send_as(control.key(), "POST", &control.path("/roles"), body).await;
    assert_eq!((duplicate.status, duplicate.text("/error/code")), (409, "CONFLICT"));
    let listed = control.api.get_as(control.key(), &control.path("/roles")).await.expect(200);
    let fields: Vec<_> = listed["data"][0].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(fields, ["createdAt", "description", "id", "name", "permissions"]);

    let role = text(&created["roleId"]);
    let roles = control.path(&format!("/agents/{}/roles", agent.id));
    let assign = async |body: Value| control.api.send_as(control.key(), "POST", &roles, body).await;
    let in_the_past = assign(json!({ "roleId": role, "expiresAt": "2020-01-01T00:00:00Z" })).await;
    assert_eq!(
        (in_the_past.status, in_the_past.text("/error/details/fields/expiresAt")),
        (400, "must be in the future, in whole seconds")
    );
    for (expires_at, is_valid) in [
        (json!(null), true),
        (json!("2099-01-01T00:00:00Z"), true),
        (json!("2099-01-01T00:00:00.5+02:00"), true),
        (json!("9999-12-31T23:59:59Z"), true),
        (json!("2099-01-01T00:00:00"), false),
        (json!("2099-01-01T00:00:00+0530"), false),
        (json!("2099-01-01T00:00:00Z[Europe/Paris]"), false),
        (json!("tomorrow"), false),
        (json!(4_070_908_800_u64), false),
    ] {
        let response = assign(json!({ "roleId": role, "expiresAt": expires_at })).await;
        assert_eq!(response.status, if is_valid { 200 } else { 400 }, "{expires_at}: {}", response.body);
    }
    assert!(control.revoke(&agent.id, &role).await);
    assert!(!control.revoke(&agent.id, &role).await, "revoking a role that is not assigned is not an error");
}

#[tokio::test]
async fn role_that_makes_an_identity_too_large_is_refused() {
    let control = ControlPlane::shared().await;
    let long = |letter: &str, count: usize| -> Vec<String> {
        (0..count).map(|n| format!("{}{n:02}", letter.repeat(126))).collect()
    };
    let create_role = async |name: &str, permissions: &[String]| {
        let body = json!({ "name": name, "permissions": permissions });
        control.api.send_as(control.key(), "POST", &control.path("/roles"), body).await
    };
    // 31 × 128 + 30 commas = 3998 bytes; the limit is 4096.
    create_role("fits", &long("a", 31)).await.expect(201);
    assert_eq!(create_role("too much", &long("b", 1)).await.status, 409);
    create_role("the same again", &long("a", 31)).await.expect(201);
    create_role("still fits", &["c".repeat(97)]).await.expect(201);
    assert_eq!(create_role("one above", &["d".to_owned()]).await.status, 409);
}

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
        for wrong in [fixture.control.key(), token.as_str(), "nonsense", "a.b.c"] {
            assert_eq!(fixture.send(Some(wrong), route).await, (401, "human_token_invalid".into()), "{route:?}");
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
async fn invalid_bodies_are_refused_with_field_and_reason() {
    let control = ControlPlane::shared().await;
    let send = async |body: &str, content_type: &str| {
        let request =
            control.api.request("POST", "/auth/register").body(body.to_owned()).header("content-type", content_type);
        HttpResponse::send(request).await
    };
    let invalid_fields = send(r#"{ "email": "x", "nmae": "y", "publicKey": 7 }"#, "application/json").await;
    assert_json_snapshot!(invalid_fields.expect(400), @r#"
    {
      "error": {
        "code": "VALIDATION_ERROR",
        "details": {
          "fields": {
            "email": "must be an e-mail address of at most 254 characters",
            "name": "is required",
            "nmae": "is not a known field",
            "publicKey": "must be a string"
          }
        },
        "message": "`email` must be an e-mail address of at most 254 characters; `name` is required; `publicKey` must be a string; `nmae` is not a known field"
      }
    }
    "#);
    let deep = format!("{{\"email\":{}1{}}}", "[".repeat(200), "]".repeat(200));
    for body in [
        "",
        "{",
        "[]",
        "null",
        "\"text\"",
        "{\"email\": NaN}",
        "{\"email\":\"a\",\"email\":\"b\"}",
        &deep,
        "{\"a\":\"\u{0}\"}",
    ] {
        let response = send(body, "application/json").await;
        assert_eq!((response.status, response.text("/error/code")), (400, "VALIDATION_ERROR"), "{body}");
    }
    let invalid_utf8 = control.api.request("POST", "/auth/register").body(b"{\"email\":\"\xff\"}".to_vec());
    assert_eq!(HttpResponse::send(invalid_utf8).await.status, 400);
    for wrong in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"] {
        assert_eq!(send("{}", wrong).await.text("/error/code"), "UNSUPPORTED_MEDIA_TYPE", "{wrong}");
    }
    for (size, status) in [(16 * 1024, 400), (16 * 1024 + 1, 413), (1024 * 1024, 413)] {
        let padded = format!("{{\"email\":\"{}\"}}", "a".repeat(size - 12));
        assert_eq!(send(&padded, "application/json").await.status, status, "{size} bytes");
    }
}

#[tokio::test]
async fn errors_have_code_message_and_details() {
    let control = ControlPlane::shared().await;
    let cases = [
        ("GET", "/nothing", 404, "NOT_FOUND"),
        ("GET", "/services/%ff/verify", 404, "NOT_FOUND"),
        ("GET", "/", 404, "NOT_FOUND"),
        ("DELETE", "/auth/register", 405, "METHOD_NOT_ALLOWED"),
        ("GET", "/auth/challenge", 405, "METHOD_NOT_ALLOWED"),
    ];
    for (method, path, status, code) in cases {
        let response = HttpResponse::send(control.api.request(method, path)).await;
        assert_eq!((response.status, response.text("/error/code")), (status, code), "{method} {path}");
        assert!(response.body["error"]["message"].is_string() && response.body["error"]["details"].is_object());
    }
    for (body, code) in [
        (json!({ "agentId": "nonsense" }), "AGENT_NOT_FOUND"),
        (json!({ "agentId": "agent_00000000000000000000000000" }), "AGENT_NOT_FOUND"),
    ] {
        let response = control.api.post("/auth/challenge", body).await;
        assert_eq!((response.status, response.text("/error/code")), (404, code));
    }
    let agent = Agent::register(&control, "agent").await;
    for service in ["nonsense", "svc_00000000000000000000000000"] {
        let response = control.api.post("/auth/challenge", json!({ "agentId": agent.id, "serviceId": service })).await;
        assert_eq!((response.status, response.text("/error/code")), (404, "SERVICE_NOT_FOUND"));
    }
    let plain = HttpClient::plain(control.env["URL"].replace("https://localhost", "http://127.0.0.1"));
    let response = plain.get("/health").await;
    assert_eq!((response.status, response.text("/error/code")), (400, "HTTPS_REQUIRED"));
    let repeated =
        control.api.request("GET", &control.path("/roles")).bearer_auth(control.key()).bearer_auth(control.key());
    assert_eq!(HttpResponse::send(repeated).await.error(), (401, "AUTHENTICATION_FAILED", "credentials_malformed"));
}

#[tokio::test]
async fn health_and_jwks_are_public() {
    let control = ControlPlane::shared().await;
    let mut health = control.api.get("/health").await.expect(200);
    assert_eq!(health["backends"]["database"].take(), engines::database_backend());
    assert_eq!(health["backends"]["redis"].take(), engines::rate_limit_backend());
    assert_json_snapshot!(redact(health, &[(".timestamp", "[time]")]), @r#"
    {
      "backends": {
        "database": null,
        "redis": null
      },
      "checks": {
        "database": "up",
        "redis": "up",
        "webhook_queue": "up"
      },
      "status": "healthy",
      "timestamp": "[time]"
    }
    "#);
    let keys = control.api.get("/.well-known/jwks.json").await;
    assert_eq!(keys.header("cache-control"), "public, max-age=300");
    let names: Vec<_> = keys.body["keys"][0].as_object().unwrap().keys().cloned().collect();
    assert_eq!(names, ["alg", "crv", "kid", "kty", "use", "x", "y"], "a published key has no private part");
}

fn redact(mut value: Value, fields: &[(&str, &str)]) -> Value {
    for (field, text) in fields {
        value[field.trim_start_matches('.')] = json!(text);
    }
    value
}
