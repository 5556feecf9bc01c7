//! Changes of roles, the list of a service's agents, the status endpoint, and published keys.

use countersign_tests::{Agent, ControlPlane, HttpResponse, Sidecar, Verifiers, VerifyOutcome, engines, http::texts};
use serde_json::{Value, json};

fn permits<'a>(expected: &'a [&'a str]) -> impl Fn(&VerifyOutcome) -> bool {
    move |outcome| matches!(outcome, VerifyOutcome::Accepted { permissions, .. } if permissions == expected)
}

#[tokio::test]
async fn changed_permissions_apply_to_issued_tokens() {
    let control = ControlPlane::shared().await;
    let sidecar = Sidecar::start(&control).await;
    let verifiers = Verifiers::new(&control, &sidecar);
    let agent = Agent::register(&control, "Agent").await;
    let role = control.assign_new_role(&agent.id, "reader", &["read"]).await;
    let token = agent.token().await;
    verifiers.wait_until_equal("the token has the original permissions", &token, permits(&["read"])).await;

    let path = format!("/roles/{role}");
    let change = async |body: Value| control.send("PATCH", &path, body).await;
    let changed = change(json!({ "permissions": ["list", "write"] })).await.expect(200);
    assert_eq!(
        (&changed["id"], &changed["name"], &changed["description"]),
        (&json!(role), &json!("reader"), &json!(""))
    );
    verifiers.wait_until_equal("the token has the changed permissions", &token, permits(&["list", "write"])).await;

    let mut changed = change(json!({ "description": "reads" })).await.expect(200);
    assert_eq!((&changed["description"], &changed["permissions"]), (&json!("reads"), &json!(["list", "write"])));
    let listed = control.get("/roles").await.expect(200);
    assert!(changed.as_object_mut().expect("the value is an object").remove("revision").is_some(), "{changed}");
    assert_eq!(listed["data"], json!([changed]));
    assert_eq!(change(json!({ "name": "writer" })).await.error().1, "VALIDATION_ERROR", "the name cannot be changed");
}

#[tokio::test]
async fn service_lists_agents_with_its_roles() {
    let control = ControlPlane::shared().await;
    let (reader, writer) = (control.create_role("reader", &[]).await, control.create_role("writer", &[]).await);
    let mut agents = Vec::new();
    for number in 0..4 {
        agents.push(Agent::register(&control, &format!("Agent {number}")).await);
    }
    for agent in &agents[..3] {
        control.assign(&agent.id, &reader).await;
    }
    control.assign_until(&agents[1].id, &writer, Some("2099-01-01T00:00:00Z".into())).await;
    control.set_status(&agents[2].id, "suspended").await.expect(200);

    let list = async |query: &str| control.get(&format!("/agents{query}")).await;
    let listed = async |query: &str, expected: &[usize]| {
        let expected: Vec<_> = expected.iter().map(|number| &agents[*number].id).collect();
        assert_eq!(texts(&list(query).await.expect(200), "id"), expected, "{query}");
    };
    listed("", &[2, 1, 0]).await;
    let all = list("").await.expect(200);
    assert_eq!(all["pagination"], json!({ "limit": 50, "offset": 0, "total": 3, "hasMore": false }));
    let mut roles = all["data"][1]["roles"].as_array().unwrap().clone();
    roles.sort_by_key(|role| role["name"].to_string());
    let until = json!("2099-01-01T00:00:00Z");
    assert_eq!(roles[0], json!({ "id": reader, "name": "reader", "expiresAt": null, "managedBy": null }));
    assert_eq!((&roles[1]["name"], &roles[1]["expiresAt"]), (&json!("writer"), &until));

    listed(&format!("?role={writer}"), &[1]).await;
    listed("?status=suspended", &[2]).await;
    listed(&format!("?status=active&role={reader}&limit=1&offset=1"), &[0]).await;
    assert_eq!(list("?status=asleep").await.error().1, "VALIDATION_ERROR");
    assert_eq!(list("?role=role_00000000000000000000000000").await.error().1, "ROLE_NOT_FOUND");
    assert_eq!(list("?role=a&role=b").await.error().1, "VALIDATION_ERROR");

    control.revoke(&agents[0].id, &reader).await;
    listed("", &[2, 1]).await;
}

#[tokio::test]
async fn status_counts_requests() {
    // Start only one replica: each one counts only its own requests.
    let control = ControlPlane::start_one_with(&[]).await;
    let read = async || control.api.get_as(control.key(), "/status").await.expect(200);
    let before = read().await;
    Agent::register(&control, "Agent").await;
    control.get("/roles").await.expect(200);
    let after = read().await;
    let [before, after_count] = [&before, &after].map(|status| status["requestCount"].as_i64().unwrap());
    assert_eq!(after_count - before, 3, "a registration, a list of roles, and the first request for the status");
    assert!(after["uptime"].as_u64().unwrap() < 60 && after["version"].is_string(), "{after}");
}

/// Without this test, the other tests of this binary could pass although only one replica answers.
#[tokio::test]
async fn requests_of_a_test_go_to_its_replicas_in_turn() {
    let control = ControlPlane::start().await;
    let replicas = control.urls().len();
    assert_eq!(replicas, if engines::use_postgres_and_redis() { 2 } else { 1 });
    let mut counts = Vec::new();
    for _ in 0..3 * replicas {
        let status = control.api.get_as(control.key(), "/status").await.expect(200);
        counts.push(status["requestCount"].as_i64().unwrap());
    }
    let increases: Vec<_> = counts.iter().zip(&counts[replicas..]).map(|(before, after)| after - before).collect();
    assert_eq!(increases, vec![1; 2 * replicas], "each replica has counted its own request before: {counts:?}");
}

#[tokio::test]
async fn jwks_with_a_matching_etag_returns_304() {
    let control = ControlPlane::shared().await;
    let keys = control.api.get("/.well-known/jwks.json").await;
    let etag = keys.header("etag").to_owned();
    assert!(etag.len() > 10 && keys.header("cache-control").contains("max-age"), "{keys:?}");
    for (etags, status) in
        [(etag.clone(), 304), (format!("\"a\", W/{etag}"), 304), ("*".into(), 304), ("\"a\"".into(), 200)]
    {
        let request = control.api.request("GET", "/.well-known/jwks.json").header("if-none-match", &etags);
        let response = HttpResponse::send(request).await;
        assert_eq!((response.status, response.header("etag")), (status, etag.as_str()), "{etags}");
        assert_eq!(response.body == json!(""), status == 304);
    }
}
