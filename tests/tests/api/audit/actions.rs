//! Tests that each management route writes one complete audit entry, and that a refused request writes none.

use super::super::bad_input::{
    fixture::Fixture,
    routes::{Access, ROUTES, Route},
};
use countersign_process::{Clock, SystemClock};
use countersign_tests::{Agent, HttpResponse};
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// The audit action of each route that changes something. A new route must be added to this list.
const AUDITED_ROUTES: &[(&str, &str, Option<&str>)] = &[
    ("POST", "/auth/register", Some("agent.registered")),
    ("POST", "/services", Some("service.created")),
    ("PATCH", "/services/{service}", Some("service.changed")),
    ("DELETE", "/services/{service}", Some("service.deleted")),
    ("PUT", "/services/{service}/transfer", Some("service.transfer_offered")),
    ("DELETE", "/services/{service}/transfer", Some("service.transfer_withdrawn")),
    ("POST", "/services/{service}/transfer/accept", Some("service.transferred")),
    ("POST", "/services/{service}/keys", Some("service_key.created")),
    ("POST", "/services/{service}/roles", Some("role.created")),
    ("PATCH", "/services/{service}/roles/{role}", Some("role.changed")),
    ("POST", "/services/{service}/agents/{agent}/roles", Some("role.assigned")),
    ("POST", "/services/{service}/assignments", Some("role.assigned")),
    ("DELETE", "/services/{service}/agents/{agent}/roles/{role}", Some("role.revoked")),
    ("PUT", "/agents/{agent}/services/{service}", Some("agent.left")),
    ("DELETE", "/services/{service}/roles/{role}", Some("role.deleted")),
    ("DELETE", "/services/{service}/keys/{key}", Some("service_key.revoked")),
    ("POST", "/signing-keys/rotate", Some("signing_key.rotated")),
    ("DELETE", "/signing-keys/{kid}", Some("signing_key.revoked")),
    ("POST", "/services/{service}/webhooks", Some("webhook.created")),
    ("POST", "/services/{service}/webhooks/{webhook}/rotate-secret", Some("webhook.secret_rotated")),
    ("POST", "/services/{service}/webhooks/{webhook}/test", Some("webhook.tested")),
    ("POST", "/services/{service}/webhooks/{webhook}/deliveries/{event}/replay", Some("webhook.replayed")),
    ("POST", "/services/{service}/webhooks/{webhook}/replay", Some("webhook.replayed")),
    ("PATCH", "/services/{service}/webhooks/{webhook}", Some("webhook.changed")),
    ("DELETE", "/services/{service}/webhooks/{webhook}", Some("webhook.deleted")),
    ("POST", "/webhooks", Some("webhook.created")),
    ("POST", "/webhooks/{webhook}/rotate-secret", Some("webhook.secret_rotated")),
    ("POST", "/webhooks/{webhook}/test", Some("webhook.tested")),
    ("POST", "/webhooks/{webhook}/deliveries/{event}/replay", Some("webhook.replayed")),
    ("POST", "/webhooks/{webhook}/replay", Some("webhook.replayed")),
    ("PATCH", "/webhooks/{webhook}", Some("webhook.changed")),
    ("DELETE", "/webhooks/{webhook}", Some("webhook.deleted")),
    // Agents' use of their own tokens is not a management action.
    ("POST", "/auth/challenge", None),
    ("POST", "/auth/authenticate", None),
    ("POST", "/auth/refresh", None),
    ("POST", "/auth/revoke", None),
    // Feedback about agents is recorded in its own history and not in the audit.
    ("POST", "/trust/feedback", None),
    ("DELETE", "/agents/{agent}", Some("agent.deleted")),
    // The route that changes the status of an agent is last, because the test suspends its agent with this route.
    ("PUT", "/agents/{agent}/status", Some("agent.status_changed")),
];

/// The issuer of the tokens that tests mint.
const OPERATOR: &str = "urn:countersign:operator";

#[test]
fn audited_routes_list_every_mutating_route() {
    let mutating = ROUTES.iter().filter(|route| route.method != "GET").map(|route| (route.method, route.path));
    let listed = AUDITED_ROUTES.iter().map(|(method, path, _)| (*method, *path));
    assert_eq!(listed.collect::<BTreeSet<_>>(), mutating.collect(), "left: AUDITED_ROUTES, right: routes.rs");
}

/// A valid body that changes something.
async fn body(fixture: &Fixture, route: &Route) -> Map<String, Value> {
    let mut body = fixture.body(route).await;
    // With `managedBy`, a repeated request would return the resource of the first one instead of creating another.
    body.remove("managedBy");
    if route.path == "/agents/{agent}/status" {
        body.insert("status".to_owned(), json!("suspended"));
    } else if route.path == "/agents/{agent}/services/{service}" {
        body.insert("mayAssignRoles".to_owned(), json!(false));
    } else if route.path.ends_with("/webhooks/{webhook}") && route.method == "PATCH" {
        body.insert("status".to_owned(), json!("paused"));
    }
    body
}

async fn send(fixture: &Fixture, route: &Route, body: &Map<String, Value>, request_id: &str) -> HttpResponse {
    let request = fixture.authorized(route).header("x-request-id", request_id);
    HttpResponse::send(route.with_body(request, body)).await
}

#[tokio::test]
async fn each_action_writes_one_entry_and_refused_requests_write_none() {
    let fixture = Fixture::new().await;
    for (number, (method, path, action)) in AUDITED_ROUTES.iter().enumerate() {
        let route = ROUTES.iter().find(|route| (route.method, route.path) == (*method, *path)).unwrap();
        let body = body(&fixture, route).await;
        // `rows` waits until no delivery is pending, because a replay does nothing while one is pending.
        fixture.rows().await;
        let before = fixture.control.audit_entries("").await.len();
        for status in refusals(&fixture, route, &body).await {
            assert!((400..500).contains(&status), "{path}: {status}");
        }
        let after_refusals = fixture.control.audit_entries("").await.len();
        assert_eq!(after_refusals, before, "a refused {route} writes no audit entry");

        let (id, sent_at) = (format!("request-{number}"), SystemClock.now().micros());
        let response = send(&fixture, route, &body, &id).await;
        assert_eq!(response.status, route.success_status, "{route}: {}", response.body);
        let after = fixture.control.audit_entries("").await;
        assert_eq!(after.len() - before, usize::from(action.is_some()), "{route}");
        if let Some(action) = action {
            assert_entry(&fixture, route, action, &after[0], &response.body);
            assert_eq!((&after[0]["requestId"], &after[0]["address"]), (&json!(id), &json!("127.0.0.1")));
            let entry_time = after[0]["at"].as_str().unwrap().parse::<Timestamp>().unwrap().as_microsecond();
            assert!(sent_at <= entry_time && entry_time <= SystemClock.now().micros(), "{entry_time}");
        }
        // A repeated request either creates another resource or changes nothing.
        let repeated = send(&fixture, route, &body, "again").await;
        let creates =
            ["/services", "/services/{service}/keys", "/services/{service}/webhooks", "/webhooks"].contains(path);
        assert_eq!(repeated.status == 201 && *path != "/auth/register", creates, "{route}: {}", repeated.body);
        let new_entries = fixture.control.audit_entries("").await.len() - after.len();
        if path.ends_with("{webhook}/replay") {
            let replayed = repeated.body["replayed"].as_u64().unwrap();
            assert_eq!(new_entries, usize::from(replayed > 0), "{path} repeated: {replayed} events were replayed");
        } else {
            let writes_entry =
                creates || ["/rotate-secret", "/test", "/{event}/replay"].iter().any(|end| path.ends_with(end));
            assert_eq!(new_entries, usize::from(writes_entry), "{route} repeated");
        }
    }
    fixture.control.assert_audit_intact();
}

/// Sends requests that must be refused, without a credential and with an unknown field. Returns the statuses of the responses.
async fn refusals(fixture: &Fixture, route: &Route, body: &Map<String, Value>) -> Vec<u16> {
    let mut statuses = Vec::new();
    if !matches!(route.access, Access::Public | Access::PublicOrHuman) {
        statuses.push(HttpResponse::send(fixture.request(route).json(body)).await.status);
    }
    if !route.fields.is_empty() {
        let mut invalid_body = body.clone();
        invalid_body.insert("unknown".to_owned(), json!(true));
        statuses.push(HttpResponse::send(fixture.authorized(route).json(&invalid_body)).await.status);
    }
    statuses
}

/// Asserts the actor, service, agent, object and details of an audit entry.
fn assert_entry(fixture: &Fixture, route: &Route, action: &str, entry: &Value, response: &Value) {
    assert_eq!(entry["action"], action);
    let key_id = |key: &str| format!("key_{}", &key["svc_sk_".len()..][..26]);
    let actor = match route.access {
        Access::PublicOrHuman => json!({ "kind": "public", "issuer": null, "id": null }),
        Access::Manager => json!({ "kind": "service_key", "issuer": null, "id": key_id(fixture.control.key()) }),
        _ => json!({ "kind": "human", "issuer": OPERATOR, "id": "developer" }),
    };
    assert_eq!(entry["actor"], actor, "{action}");
    let service = match action {
        // The entry about an agent that left a service does not belong to the service, which must not learn who owns the agent.
        "agent.registered"
        | "agent.deleted"
        | "agent.status_changed"
        | "agent.left"
        | "signing_key.rotated"
        | "signing_key.revoked" => Value::Null,
        "service.created" => response["serviceId"].clone(),
        "service.deleted" => json!(fixture.deletable_service()),
        _ if action.starts_with("service.transfer") => json!(fixture.offered_service()),
        _ if route.path.starts_with("/webhooks") => Value::Null,
        _ => json!(fixture.control.service()),
    };
    assert_eq!(entry["serviceId"], service, "{action}");
    let agent = match action {
        "agent.registered" => response["agentId"].clone(),
        "agent.deleted" => json!(fixture.deletable_agent()),
        _ if route.path.contains("{agent}") || action == "role.assigned" => json!(fixture.agent.id),
        _ => Value::Null,
    };
    assert_eq!(entry["agentId"], agent, "{action}");
    let object = match action {
        "role.created" => json!({ "kind": "role", "id": response["roleId"] }),
        "role.deleted" => json!({ "kind": "role", "id": fixture.deletable_role }),
        _ if action.starts_with("role.") => json!({ "kind": "role", "id": fixture.role }),
        "service_key.created" => json!({ "kind": "service_key", "id": response["keyId"] }),
        "service_key.revoked" => json!({ "kind": "service_key", "id": key_id(&fixture.spare_key) }),
        "webhook.created" => json!({ "kind": "webhook", "id": response["webhookId"] }),
        "webhook.deleted" => json!({ "kind": "webhook", "id": fixture.webhooks_of(route).deletable }),
        _ if action.starts_with("webhook.") => json!({ "kind": "webhook", "id": fixture.webhooks_of(route).permanent }),
        _ if action.starts_with("signing_key.") => json!({ "kind": "signing_key", "id": fixture.next_kid }),
        _ => Value::Null,
    };
    assert_eq!(entry["object"], object, "{action}");
    let expected = match action {
        "webhook.replayed" if route.path.contains("{event}") => json!({ "event": fixture.event }),
        "agent.left" => json!({ "roles": response["revokedRoles"], "serviceId": fixture.control.service() }),
        "role.assigned" if route.path.ends_with("/assignments") => {
            json!({ "name": "reader", "until": null, "untilBefore": 4_070_908_800_u64 })
        }
        _ => details(action, response),
    };
    assert_eq!(entry["details"], expected, "{action}");
}

/// The expected `details` of the audit entry for an action.
fn details(action: &str, response: &Value) -> Value {
    match action {
        "service.created" => json!({ "name": "Service", "acceptsUnboundTokens": true }),
        "service.changed" => json!({
            "name": { "from": "development", "to": "Service" },
            "resourceUris": { "from": "https://service.example", "to": response["resourceUris"][0] },
        }),
        "service.deleted" => json!({ "revokedKeys": 0, "deletedWebhooks": 0 }),
        "service.transfer_offered" => json!({ "to": { "issuer": OPERATOR, "id": "receiver" } }),
        "service.transfer_withdrawn" => json!({ "to": { "issuer": OPERATOR, "id": "developer" } }),
        "service.transferred" => {
            let [from, to] = ["seller", "developer"].map(|id| json!({ "issuer": OPERATOR, "id": id }));
            json!({ "from": from, "to": to })
        }
        "service_key.created" => json!({ "name": "Key", "scope": "sync" }),
        "agent.registered"
        | "agent.deleted"
        | "service_key.revoked"
        | "signing_key.revoked"
        | "webhook.secret_rotated"
        | "webhook.tested" => json!({}),
        "webhook.created" => json!({ "host": "127.0.0.1", "events": ["agent.role_assigned"] }),
        "webhook.changed" => json!({ "status": { "from": "active", "to": "paused" } }),
        "webhook.deleted" => json!({ "host": "127.0.0.1" }),
        "webhook.replayed" => json!({ "since": 1_577_836_800 }),
        "role.created" => json!({ "name": response["name"], "description": "Reads", "permissions": ["read"] }),
        "role.changed" => json!({ "description": { "from": "", "to": "Reads" } }),
        "signing_key.rotated" => {
            json!({ "signsFrom": response["signsFrom"].as_str().unwrap().parse::<Timestamp>().unwrap().as_second() })
        }
        "role.assigned" => json!({ "name": "reader", "until": 4_070_908_800_u64, "untilBefore": null }),
        "role.revoked" => json!({ "name": "reader" }),
        "role.deleted" => json!({ "name": "deletable" }),
        "agent.status_changed" => json!({ "status": { "from": "active", "to": "suspended" } }),
        _ => panic!("{action} has no expected details"),
    }
}

#[tokio::test]
async fn audit_entry_names_the_human_user_on_routes_that_also_accept_service_keys() {
    let fixture = Fixture::new().await;
    let body = json!({ "name": "by hand", "permissions": [] });
    let control = &fixture.control;
    control.api.send_as(control.human(), "POST", &control.path("/roles"), body).await.expect(201);
    Agent::register_as(control, &control.mint_human("dora"), "mine").await;
    let entries = control.audit_entries("").await;
    let actors: Vec<_> = entries[..2].iter().map(|entry| (&entry["action"], &entry["actor"]["id"])).collect();
    let expected = [(&json!("agent.registered"), &json!("dora")), (&json!("role.created"), &json!("developer"))];
    assert_eq!(actors, expected);
}
