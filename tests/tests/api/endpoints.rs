//! Responses and errors of the HTTP API.

use countersign_client::PrivateKey;
use countersign_tests::{Agent, ControlPlane, agent::registration, control_plane::text, engines, http::HttpClient};
use insta::assert_json_snapshot;
use serde_json::{Value, json};

#[tokio::test]
async fn registration_is_idempotent_and_the_record_is_readable() {
    let control = ControlPlane::shared().await;
    let mut body = registration(&PrivateKey::generate(), "Agent");
    body["metadata"] = json!({ "team": "blue" });
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
        assert_ne!(other["agentId"], first["agentId"], "a copied public key does not block its owner: {field}");
    }
    let record = control.get(&format!("/agents/{}", text(&first["agentId"]))).await.expect(200);
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
    let created = control.send("POST", "/roles", body.clone()).await.expect(201);
    assert_eq!((&created["name"], &created["permissions"]), (&json!("reader"), &json!(["list", "read"])));
    let duplicate = control.send("POST", "/roles", body).await;
    assert_eq!(duplicate.code(), (409, "CONFLICT"));
    let listed = control.get("/roles").await.expect(200);
    let fields: Vec<_> = listed["data"][0].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(fields, ["createdAt", "description", "id", "managedBy", "name", "permissions"]);

    let role = text(&created["roleId"]);
    let roles = format!("/agents/{}/roles", agent.id);
    let assign = async |body: Value| control.send("POST", &roles, body).await;
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
        control.send("POST", "/roles", json!({ "name": name, "permissions": permissions })).await
    };
    // 31 permissions of 128 characters and 30 commas are 3998 bytes; the limit is 4096 bytes.
    create_role("fits", &long("a", 31)).await.expect(201);
    assert_eq!(create_role("too much", &long("b", 1)).await.status, 409);
    create_role("the same again", &long("a", 31)).await.expect(201);
    let role = text(&create_role("still fits", &["c".repeat(97)]).await.expect(201)["roleId"]);
    assert_eq!(create_role("one above", &["d".to_owned()]).await.status, 409);
    let change = async |length: usize| {
        let body = json!({ "permissions": ["c".repeat(length)] });
        control.send("PATCH", &format!("/roles/{role}"), body).await.status
    };
    assert_eq!((change(96).await, change(98).await, change(97).await), (200, 409, 200));
}

#[tokio::test]
async fn limits_of_names_count_the_bytes_in_headers() {
    let control = ControlPlane::shared().await;
    let agent = Agent::register(&control, "agent").await;
    let assignments = format!("/agents/{}/roles", agent.id);
    // In a header, each of these names has 757 bytes; the limit is 2048 bytes.
    for (first, status) in [("a", 200), ("b", 200), ("c", 409)] {
        let role = control.create_role(&format!("{first}{}", "🤖".repeat(63)), &[]).await;
        let assigned = control.send("POST", &assignments, json!({ "roleId": role })).await;
        assert_eq!(assigned.status, status, "{first}: {}", assigned.body);
        let message = assigned.text("/error/message");
        assert_eq!(message.contains("have at most 2048 bytes in a header"), status == 409, "{message}");
    }
    // In a header, each of these permissions has 380 bytes; the limit is 4096 bytes.
    let permissions: Vec<_> = (0..11).map(|number| format!("{number:02}{}", "%".repeat(126))).collect();
    let create_role = async |name: &str, permissions: &[String]| {
        control.send("POST", "/roles", json!({ "name": name, "permissions": permissions })).await
    };
    create_role("fits", &permissions[..10]).await.expect(201);
    let refused = create_role("too much", &permissions[10..]).await;
    assert_eq!(refused.status, 409, "{}", refused.body);
    let message = refused.text("/error/message");
    assert!(message.contains("have at most 4096 bytes in a header, where `%` takes 3 bytes"), "{message}");
}

#[tokio::test]
async fn permissions_of_all_roles_together_are_limited() {
    let control = ControlPlane::start_one_with(&[]).await;
    let permissions: Vec<_> = (0..800).map(|number| format!("p{number:03}")).collect();
    let create_role = async |name: &str, permissions: &[String]| {
        control.send("POST", "/roles", json!({ "name": name, "permissions": permissions })).await
    };
    // 800 permissions and commas are 4,000 bytes; the limit is 131,072 bytes.
    for number in 0..32 {
        create_role(&format!("role {number}"), &permissions).await.expect(201);
    }
    let refused = create_role("too much", &permissions).await;
    let message = refused.text("/error/message");
    assert!(refused.status == 409 && message.contains("have at most 131072 bytes"), "{}", refused.body);
    let role = text(&create_role("small", &permissions[..1]).await.expect(201)["roleId"]);
    let grown = control.send("PATCH", &format!("/roles/{role}"), json!({ "permissions": permissions })).await;
    assert_eq!(grown.status, 409, "{}", grown.body);
}

#[tokio::test]
async fn invalid_body_is_refused_with_each_field_and_reason() {
    let control = ControlPlane::shared().await;
    let invalid_fields = json!({ "email": "x", "nmae": "y", "publicKey": 7 });
    let invalid_fields = control.api.post("/auth/register", invalid_fields).await;
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
}

#[tokio::test]
async fn errors_have_code_message_and_details() {
    let control = ControlPlane::shared().await;
    for path in ["/nothing", "/services/%ff/verify", "/"] {
        let response = control.api.get(path).await;
        assert_eq!(response.code(), (404, "NOT_FOUND"), "{path}");
        assert!(response.body["error"]["message"].is_string() && response.body["error"]["details"].is_object());
    }
    let agent = Agent::register(&control, "agent").await;
    for (agent, service, code) in [
        ("nonsense", None, "AGENT_NOT_FOUND"),
        ("agent_00000000000000000000000000", None, "AGENT_NOT_FOUND"),
        (&agent.id, Some("nonsense"), "SERVICE_NOT_FOUND"),
        (&agent.id, Some("svc_00000000000000000000000000"), "SERVICE_NOT_FOUND"),
    ] {
        let response = control.api.post("/auth/challenge", json!({ "agentId": agent, "serviceId": service })).await;
        assert_eq!(response.code(), (404, code), "{agent} {service:?}");
    }
    let plain = HttpClient::plain(control.env["URL"].replace("https://localhost", "http://127.0.0.1"));
    assert_eq!(plain.get("/health").await.code(), (400, "HTTPS_REQUIRED"));
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
        "housekeeping": "up",
        "master_key": "up",
        "redis": "up",
        "webhook_queue": "up"
      },
      "reasons": [],
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
