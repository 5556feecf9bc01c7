//! `managedBy`, and several changes of assignments in one request.

use countersign_tests::{Agent, ControlPlane, HttpResponse, control_plane::text, http::items};
use futures_util::future::join_all;
use serde_json::{Value, json};

async fn send(control: &ControlPlane, bearer: &str, method: &str, path: &str, body: Value) -> HttpResponse {
    control.api.send_as(bearer, method, path, body).await
}

/// Sends the request ten times at once. One request creates something, and the others are refused as conflicts.
async fn assert_one_of_ten_creates(control: &ControlPlane, bearer: &str, path: &str, body: &Value) -> Value {
    let requests = join_all((0..10).map(|_| send(control, bearer, "POST", path, body.clone()))).await;
    let (mut created, refused): (Vec<_>, Vec<_>) = requests.into_iter().partition(|response| response.status == 201);
    assert_eq!(created.len(), 1, "{refused:?}");
    for response in &refused {
        assert_eq!(response.code(), (409, "CONFLICT"), "{response:?}");
        assert!(response.text("/error/message").contains("the same `managedBy` `team`"), "{response:?}");
    }
    created.remove(0).body
}

#[tokio::test]
async fn owner_has_one_managed_thing_of_each_name() {
    let control = ControlPlane::start().await;
    let (alice, bob) = (control.mint_human("alice"), control.mint_human("bob"));
    let shop = json!({ "name": "Shop", "managedBy": "team" });
    let service = assert_one_of_ten_creates(&control, &alice, "/services", &shop).await;
    assert_eq!(service["managedBy"], json!("team"));
    let path = format!("/services/{}", text(&service["serviceId"]));
    // Services of other owners, with another `managedBy` or without one may have the same name.
    send(&control, &bob, "POST", "/services", shop.clone()).await.expect(201);
    send(&control, &alice, "POST", "/services", json!({ "name": "Shop", "managedBy": "others" })).await.expect(201);
    let unmanaged = send(&control, &alice, "POST", "/services", json!({ "name": "Shop" })).await.expect(201);
    assert_eq!(unmanaged["managedBy"], Value::Null);

    let other = format!("/services/{}", text(&unmanaged["serviceId"]));
    let refused = send(&control, &alice, "PATCH", &other, json!({ "managedBy": "team" })).await;
    assert_eq!(refused.error().1, "CONFLICT", "a change does not make a second one either");
    let renamed = send(&control, &alice, "PATCH", &other, json!({ "name": "Store", "managedBy": "team" })).await;
    assert_eq!(renamed.expect(200)["managedBy"], json!("team"));
    assert_eq!(send(&control, &alice, "PATCH", &other, json!({ "name": "Shop" })).await.error().1, "CONFLICT");

    let key = json!({ "name": "sidecar", "scope": "sync", "managedBy": "team" });
    let keys = format!("{path}/keys");
    let created = assert_one_of_ten_creates(&control, &alice, &keys, &key).await;
    let listed = control.api.get_as(&alice, &keys).await.expect(200);
    assert_eq!(listed["data"][0]["managedBy"], json!("team"));
    send(&control, &alice, "DELETE", &format!("{keys}/{}", text(&created["keyId"])), Value::Null).await.expect(200);
    send(&control, &alice, "POST", &keys, key).await.expect(201);

    let webhooks = format!("{path}/webhooks");
    let webhook = json!({ "url": "http://127.0.0.1:1024/hook", "managedBy": "team" });
    let created = assert_one_of_ten_creates(&control, &alice, &webhooks, &webhook).await;
    assert_eq!(created["managedBy"], json!("team"));
    let second = json!({ "url": "http://127.0.0.1:1024/second", "managedBy": "team" });
    let second = send(&control, &alice, "POST", &webhooks, second).await.expect(201);
    let second = format!("{webhooks}/{}", text(&second["webhookId"]));
    let moved = send(&control, &alice, "PATCH", &second, json!({ "url": "http://127.0.0.1:1024/hook" })).await;
    assert_eq!(moved.error().1, "CONFLICT");

    let role = json!({ "name": "reader", "permissions": [], "managedBy": "team" });
    let role = send(&control, &alice, "POST", &format!("{path}/roles"), role).await.expect(201);
    let role = format!("{path}/roles/{}", text(&role["roleId"]));
    let changed = send(&control, &alice, "PATCH", &role, json!({ "description": "Reads" })).await.expect(200);
    assert_eq!(changed["managedBy"], json!("team"), "an absent field keeps its value");
    let changed = send(&control, &alice, "PATCH", &role, json!({ "managedBy": "others" })).await.expect(200);
    assert_eq!(changed["managedBy"], json!("others"));
    let audit = format!("/audit?serviceId={}", text(&service["serviceId"]));
    let newest = control.api.get_as(&alice, &audit).await.expect(200)["data"][0].clone();
    assert_eq!(newest["details"]["managedBy"], json!({ "from": "team", "to": "others" }), "{newest}");

    for wrong in ["", "-a", "a b", "ä", &"a".repeat(64)] {
        let refused = send(&control, &alice, "POST", "/services", json!({ "name": "S", "managedBy": wrong })).await;
        assert_eq!(refused.code(), (400, "VALIDATION_ERROR"), "{wrong}");
    }
}

/// If the service kept its `managedBy`, files of the new owner with the same value could change or delete it.
#[tokio::test]
async fn accepted_service_is_managed_by_nobody() {
    let control = ControlPlane::start().await;
    let [alice, bob] = ["alice", "bob"].map(|person| control.mint_human(person));
    let shop = json!({ "name": "Shop", "managedBy": "team" });
    let service = send(&control, &alice, "POST", "/services", shop.clone()).await.expect(201);
    send(&control, &bob, "POST", "/services", shop).await.expect(201);
    let path = format!("/services/{}", text(&service["serviceId"]));
    let role = json!({ "name": "reader", "permissions": [], "managedBy": "team" });
    send(&control, &alice, "POST", &format!("{path}/roles"), role).await.expect(201);
    send(&control, &alice, "PUT", &format!("{path}/transfer"), json!({ "subject": "bob" })).await.expect(200);
    let accepted = send(&control, &bob, "POST", &format!("{path}/transfer/accept"), json!({})).await.expect(200);
    assert_eq!(accepted["managedBy"], Value::Null);
    let roles = control.api.get_as(&bob, &format!("{path}/roles")).await.expect(200);
    assert_eq!(roles["data"][0]["managedBy"], Value::Null);
    assert_eq!(control.api.get_as(&bob, &path).await.expect(200)["managedBy"], Value::Null);
}

#[tokio::test]
async fn assignments_change_together_and_each_has_its_result() {
    let control = ControlPlane::start().await;
    let (first, second) = (Agent::register(&control, "first").await, Agent::register(&control, "second").await);
    let (reader, writer) = (control.create_role("reader", &["read"]).await, control.create_role("writer", &[]).await);
    control.assign(&second.id, &reader).await;
    let unknown = "agent_00000000000000000000000001";
    let end = "2099-12-31T23:00:00Z";
    let changes = json!({ "changes": [
        { "agentId": first.id, "roleId": reader, "managedBy": "team", "expiresAt": end },
        { "agentId": unknown, "roleId": reader },
        { "agentId": second.id, "roleId": reader, "revoked": true },
        { "agentId": second.id, "roleId": reader, "revoked": true },
        { "agentId": second.id, "roleId": writer, "revoked": false },
        { "agentId": second.id, "roleId": writer, "expiresAt": "2001-01-01T00:00:00Z" },
        { "agentId": second.id, "roleId": writer, "revoked": true, "managedBy": "team" },
    ] });
    let done = control.send("POST", "/assignments", changes).await.expect(200);
    let results = done["results"].as_array().unwrap();
    let short: Value = results.iter().map(|result| json!([result["status"], result["changed"]])).collect();
    let expected = json!([[200, true], [404, null], [200, true], [200, false], [200, true], [400, null], [400, null]]);
    assert_eq!(short, expected, "{done}");
    assert!(results[0]["revision"].as_i64().unwrap() > 0 && results[0]["error"].is_null());
    assert_eq!(results[1]["error"]["code"], json!("AGENT_NOT_FOUND"));
    assert!(results[5]["error"]["details"]["fields"]["expiresAt"].is_string(), "{done}");

    let roles = async |agent: &Agent| {
        let listed = control.get("/agents").await.expect(200);
        items(&listed).iter().find(|it| it["id"] == agent.id).unwrap()["roles"].clone()
    };
    let held = json!([{ "id": reader, "name": "reader", "expiresAt": end, "managedBy": "team" }]);
    assert_eq!(roles(&first).await, held);
    let names = roles(&second).await;
    assert_eq!((&names[0]["name"], names.as_array().unwrap().len()), (&json!("writer"), 1));
    control.assign(&first.id, &reader).await;
    assert_eq!(roles(&first).await[0]["managedBy"], json!("team"), "an assignment without a name keeps that name");
}

#[tokio::test]
async fn assignments_of_another_service_or_with_an_error_are_refused() {
    let control = ControlPlane::start().await;
    let (first, reader) = (Agent::register(&control, "first").await, control.create_role("reader", &["read"]).await);
    let (path, end) = (control.path("/assignments"), "2099-12-31T23:00:00Z");
    let (_, other) = control.create_service(json!({ "name": "other" })).await;
    let change = json!({ "agentId": first.id, "roleId": reader });
    let refused = send(&control, &other, "POST", &path, json!({ "changes": [change] })).await;
    assert_eq!(refused.status, 403, "{refused:?}");
    for (changes, expected) in [
        (json!([]), "`changes` must have 1 to 32 items"),
        (json!(vec![change.clone(); 33]), "`changes` must have 1 to 32 items"),
        (json!({}), "`changes` must be an array of objects"),
        (json!([change, 1]), "`changes` item 1 must be an object"),
        (json!([change, { "agentId": first.id }]), "`changes` item 1: `roleId` is required"),
        (json!([change, { "agentId": "nobody", "roleId": reader }]), "item 1: `agentId` must be the id of an agent"),
        (json!([{ "agentId": first.id, "roleId": "reader" }]), "item 0: `roleId` must be the id of a role"),
        (json!([{ "agentId": first.id, "roleId": reader, "expires": end }]), "item 0: `expires` is not a known field"),
    ] {
        let refused = control.send("POST", "/assignments", json!({ "changes": changes })).await;
        assert_eq!(refused.status, 400);
        assert!(refused.text("/error/message").contains(expected), "{expected}: {refused:?}");
    }
}

#[tokio::test]
async fn many_changes_count_as_several_requests() {
    let control = ControlPlane::start_with(&["limits.management_per_minute=20"]).await;
    let agents = join_all((0..9).map(async |_| Agent::register(&control, "agent").await.id)).await;
    let role = control.create_role("reader", &[]).await;
    let request = async |agents: &[String]| {
        let changes: Vec<_> = agents.iter().map(|agent| json!({ "agentId": agent, "roleId": role })).collect();
        control.send("POST", "/assignments", json!({ "changes": changes })).await
    };
    let one_agent = vec![agents[0].clone(); 5];
    let all = &agents[..];
    let requests =
        [(&agents[..8], 18), (all, 16), (&one_agent, 15), (all, 13), (all, 11), (all, 9), (all, 7), (all, 5)];
    for (agents, remaining) in requests.into_iter().chain([(all, 3), (all, 1)]) {
        let response = request(agents).await;
        assert_eq!(response.status, 200, "{response:?}");
        let status = response.header("ratelimit");
        assert!(status.contains(&format!("\"management\";r={remaining};")), "{status}");
    }
    request(&agents[..1]).await.expect(200);
    assert_eq!(request(&agents[..1]).await.error().1, "RATE_LIMIT_EXCEEDED");
}
