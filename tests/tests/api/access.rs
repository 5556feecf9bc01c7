//! Who may access which resource. `bad_input` tests for every route which credentials it accepts.

use countersign_tests::{Agent, ControlPlane, Tenant, control_plane::text};
use serde_json::json;

#[tokio::test]
async fn resources_of_other_services_are_refused_without_revealing_their_existence() {
    let control = ControlPlane::shared().await;
    let other = Tenant::new(&control, "another owner").await;
    for service in [other.service.clone(), other.service.replace("svc_0", "svc_1")] {
        let refused = control.api.get_as(control.key(), &format!("/services/{service}/roles")).await;
        assert_eq!(refused.reason(), (403, "not_yours"), "{service}");
    }
    let malformed = control.api.get_as(control.key(), "/services/nonsense/roles").await;
    assert_eq!(malformed.code(), (404, "SERVICE_NOT_FOUND"));
    let theirs = other.send("POST", "/roles", json!({ "name": "theirs", "permissions": [] })).await.expect(201);
    let agent = Agent::register(&control, "agent").await;
    let assign = format!("/agents/{}/roles", agent.id);
    let assigned = control.send("POST", &assign, json!({ "roleId": theirs["roleId"] })).await;
    assert_eq!(assigned.code(), (404, "ROLE_NOT_FOUND"));
}

#[tokio::test]
async fn owner_manages_services_and_agents_with_a_human_token() {
    let control = ControlPlane::shared().await;
    let (alice, bob) = (control.mint_human("alice"), control.mint_human("bob"));
    let created = control.api.send_as(&alice, "POST", "/services", json!({ "name": "Alice's" })).await.expect(201);
    let role = json!({ "name": "reader", "permissions": ["read"] });
    let roles = format!("/services/{}/roles", text(&created["serviceId"]));
    control.api.send_as(&alice, "POST", &roles, role.clone()).await.expect(201);
    assert_eq!(control.api.send_as(&bob, "POST", &roles, role).await.status, 403);
    let agent = Agent::register_as(&control, &alice, "Agent").await;
    let status = format!("/agents/{}/status", agent.id);
    let suspend =
        async |human: &str| control.api.send_as(human, "PUT", &status, json!({ "status": "suspended" })).await;
    assert_eq!(suspend(&bob).await.error(), (403, "INSUFFICIENT_PERMISSIONS", "not_yours"));
    suspend(&alice).await.expect(200);
    let refused = agent.challenge(&control.api, None).await;
    assert_eq!(refused.error(), (403, "INSUFFICIENT_PERMISSIONS", "agent_suspended"));
}

#[tokio::test]
async fn owner_of_an_agent_reads_it_and_other_users_do_not() {
    let control = ControlPlane::shared().await;
    let (alice, bob) = (control.mint_human("alice"), control.mint_human("bob"));
    let agent = Agent::register_as(&control, &alice, "Agent").await.id;
    let path = control.path(&format!("/agents/{agent}"));
    for token in [alice.as_str(), control.human(), control.key()] {
        assert_eq!(control.api.get_as(token, &path).await.expect(200)["id"], agent);
    }
    let unknown = control.path(&format!("/agents/{}", agent.replace("agent_0", "agent_1")));
    for (token, path) in [(&bob, &path), (&bob, &unknown), (&alice, &unknown)] {
        let refused = control.api.get_as(token, path).await;
        assert_eq!(refused.error(), (403, "INSUFFICIENT_PERMISSIONS", "not_yours"), "{path}");
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
    assert_eq!(refused.reason(), (403, "admin_required"), "{refused:?}");
    assert_eq!(refused.body["error"]["details"]["setting"], "services.created_by");
    control.api.send_as(control.human(), "POST", "/services", body).await.expect(201);
}
