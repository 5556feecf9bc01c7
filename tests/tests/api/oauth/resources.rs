//! Resource URIs of services (RFC 8707) and their metadata (RFC 9728).

use countersign_tests::{
    Agent, ControlPlane, HttpResponse,
    control_plane::text,
    jwt,
    oauth::{code, issuer, log_in},
};
use serde_json::{Value, json};

async fn set(control: &ControlPlane, human: &str, service: &str, uris: Value) -> HttpResponse {
    let body = json!({ "resourceUris": uris });
    control.api.send_as(human, "PATCH", &format!("/services/{service}"), body).await
}

#[tokio::test]
async fn clients_name_a_service_by_its_resource_uris() {
    let control = ControlPlane::start().await;
    let agent = Agent::register(&control, "agent").await;
    let (service, human) = (control.service(), control.human());
    let uris = json!(["https://API.example:443/", "http://127.0.0.1:8080/mcp/"]);
    let changed = set(&control, human, service, uris).await.expect(200);
    let normal = json!(["https://api.example", "http://127.0.0.1:8080/mcp"]);
    assert_eq!(changed["resourceUris"], normal);
    let read = control.api.get_as(human, &format!("/services/{service}")).await.expect(200);
    assert_eq!(read["resourceUris"], normal);
    for resource in ["https://api.example", "https://api.example/", "http://127.0.0.1:8080/mcp"] {
        let tokens = log_in(&control, &agent, &[("resource", resource)]).await.expect(200);
        assert_eq!(jwt::claims(&text(&tokens["access_token"]))["aud"], service, "{resource}");
    }
    let both = [("resource", "https://api.example"), ("audience", service)];
    log_in(&control, &agent, &both).await.expect(200);
    let path = format!("/services/{service}/protected-resource-metadata");
    let issuer = issuer(&control).await;
    for (query, resource) in
        [("", "https://api.example"), ("?resource=http://127.0.0.1:8080/mcp", "http://127.0.0.1:8080/mcp")]
    {
        let document = control.api.get(&format!("{path}{query}")).await.expect(200);
        assert_eq!((&document["resource"], &document["authorization_servers"]), (&json!(resource), &json!([issuer])));
        assert_eq!(document["bearer_methods_supported"], json!(["header"]));
    }
    assert_eq!(control.api.get(&format!("{path}?resource=https://other.example")).await.status, 400);

    set(&control, human, service, json!([])).await.expect(200);
    let refused = log_in(&control, &agent, &[("resource", "https://api.example")]).await;
    assert_eq!(code(&refused), (400, "invalid_target"));
    assert_eq!(control.api.get(&path).await.status, 404);
    let entries = control.audit_entries(&format!("&serviceId={service}")).await;
    let recorded: Vec<_> = entries.iter().map(|entry| &entry["details"]["resourceUris"]).collect();
    let change = json!({ "from": "", "to": "https://api.example http://127.0.0.1:8080/mcp" });
    assert!(recorded.contains(&&change), "{recorded:?}");
}

#[tokio::test]
async fn a_host_belongs_to_the_services_of_one_owner() {
    let control = ControlPlane::start().await;
    let stranger = control.mint_human("stranger");
    let (service, owner) = (control.service(), control.human());
    let (second, _) = control.create_service(json!({ "name": "second" })).await;
    let (foreign, _) = control.create_service_of(&stranger, json!({ "name": "foreign" })).await;
    set(&control, owner, service, json!(["https://api.example/mcp"])).await.expect(200);
    for uri in
        ["https://api.example/mcp", "https://api.example", "http://api.example:8080/mcp", "https://api.example./mcp"]
    {
        assert_eq!(set(&control, &stranger, &foreign, json!([uri])).await.error().1, "CONFLICT", "{uri}");
    }
    assert_eq!(set(&control, owner, &second, json!(["https://api.example/mcp"])).await.error().1, "CONFLICT");
    set(&control, owner, &second, json!(["https://api.example/other"])).await.expect(200);
    set(&control, owner, service, json!(["https://api.example/mcp", "https://b.example"])).await.expect(200);
    for service in [service, &second] {
        control.api.send_as(owner, "DELETE", &format!("/services/{service}"), json!({})).await.expect(200);
    }
    set(&control, &stranger, &foreign, json!(["https://api.example/mcp"])).await.expect(200);
}

#[tokio::test]
async fn lists_that_are_no_resource_uris_are_refused() {
    let control = ControlPlane::start().await;
    let many: Vec<_> = (0..9).map(|number| format!("https://api{number}.example")).collect();
    for uris in [
        json!("https://api.example"),
        json!([1]),
        json!(["api.example"]),
        json!(["https://api.example?a"]),
        json!(["https://user@api.example"]),
        json!(["https://api.example", "https://api.example/"]),
        json!(many),
    ] {
        let refused = set(&control, control.human(), control.service(), uris.clone()).await;
        assert_eq!(refused.status, 400, "{uris}");
        assert!(!refused.text("/error/details/fields/resourceUris").is_empty(), "{uris}: {refused:?}");
    }
}
