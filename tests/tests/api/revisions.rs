//! Tests the field `revision` in the answers to requests whose changes sidecars must receive.

use countersign_tests::{Agent, ControlPlane, Database, HttpResponse, control_plane::text};
use serde_json::{Value, json};

/// Sends changes, and compares the revisions in the answers with the change feed.
struct Feed<'a> {
    control: &'a ControlPlane,
    database: Database,
    newest: i64,
}

impl<'a> Feed<'a> {
    async fn new(control: &'a ControlPlane) -> Self {
        Self { control, database: Database::connect_to(control).await, newest: 0 }
    }

    /// The facets (the kinds of data that changed) of the changes with this revision and subject.
    async fn facets(&mut self, revision: i64, subject: &str) -> Vec<String> {
        let changes = format!("FROM changes WHERE revision = {revision} AND subject = '{subject}'");
        self.database.text_column(&format!("SELECT DISTINCT CAST(facet AS TEXT) {changes} ORDER BY 1")).await
    }

    async fn send(&self, bearer: &str, method: &str, path: &str, body: Value) -> Value {
        let request = self.control.api.request(method, path).bearer_auth(bearer);
        let request = if body.is_null() { request } else { request.json(&body) };
        let response = HttpResponse::send(request).await;
        assert!(matches!(response.status, 200..=202), "{method} {path}: {response:?}");
        response.body
    }

    /// Sends a request that changes something. Under the revision of the answer, the change feed must contain changes of these
    /// facets of the subject. The revision must be higher than those of earlier changes.
    async fn change(
        &mut self,
        [bearer, method, path]: [&str; 3],
        body: Value,
        subject: &str,
        facets: &[&str],
    ) -> Value {
        let answer = self.send(bearer, method, path, body).await;
        let revision = answer["revision"].as_i64().unwrap_or_else(|| panic!("{method} {path}: {answer}"));
        assert!(revision > self.newest, "{method} {path}: {answer} after {}", self.newest);
        assert_eq!(self.facets(revision, subject).await, facets, "{method} {path}: {answer}");
        self.newest = revision;
        answer
    }

    /// Sends a request that changes nothing that sidecars know. Its answer has the revision of the newest change.
    async fn repeat(&self, [bearer, method, path]: [&str; 3], body: Value) -> Value {
        let answer = self.send(bearer, method, path, body).await;
        assert_eq!(answer["revision"], self.newest, "{method} {path}: {answer}");
        answer
    }
}

#[tokio::test]
async fn changes_of_roles_answer_with_the_revision_of_the_change_feed() {
    let control = ControlPlane::start().await;
    let mut feed = Feed::new(&control).await;
    let agent = Agent::register(&control, "agent").await;
    let (key, service, roles) = (control.key(), control.service(), control.path("/roles"));
    let new_role = json!({ "name": "reader", "permissions": ["read"] });
    let created = feed.change([key, "POST", &roles], new_role, service, &["definitions"]).await;
    let role = text(&created["roleId"]);
    let of_role = control.path(&format!("/roles/{role}"));
    let permissions = json!({ "permissions": ["read", "write"] });
    let changed = feed.change([key, "PATCH", &of_role], permissions, service, &["definitions"]).await;
    assert_eq!((&changed["name"], &changed["permissions"][1]), (&json!("reader"), &json!("write")));
    // Sidecars do not know descriptions.
    feed.repeat([key, "PATCH", &of_role], json!({ "description": "Reads" })).await;

    let (of_agent, body) = (control.path(&format!("/agents/{}/roles", agent.id)), json!({ "roleId": role }));
    feed.change([key, "POST", &of_agent], body.clone(), &agent.id, &["roles"]).await;
    let assignment = format!("{of_agent}/{role}");
    let revoked = feed.change([key, "DELETE", &assignment], Value::Null, &agent.id, &["roles"]).await;
    assert_eq!(revoked["revoked"], true);
    assert_eq!(feed.repeat([key, "DELETE", &assignment], Value::Null).await["revoked"], false);

    feed.change([key, "POST", &of_agent], body, &agent.id, &["roles"]).await;
    let admission = format!("/agents/{}/services/{service}", agent.id);
    let leave = [control.human(), "PUT", &admission];
    let left = feed.change(leave, json!({ "mayAssignRoles": false }), &agent.id, &["roles"]).await;
    assert_eq!(left["revokedRoles"], 1);
    feed.repeat(leave, json!({ "mayAssignRoles": false })).await;
    feed.repeat(leave, json!({ "mayAssignRoles": true })).await;
    feed.change([key, "DELETE", &of_role], Value::Null, service, &["definitions"]).await;
}

#[tokio::test]
async fn changes_of_agents_services_and_keys_answer_with_the_revision_of_the_change_feed() {
    let control = ControlPlane::start().await;
    let mut feed = Feed::new(&control).await;
    let agent = Agent::register(&control, "agent").await;
    agent.token().await;
    let (human, status) = (control.human(), format!("/agents/{}/status", agent.id));
    for new in ["suspended", "active"] {
        let body = json!({ "status": new });
        let changed = feed.change([human, "PUT", &status], body.clone(), &agent.id, &["status"]).await;
        assert_eq!((&changed["status"], &changed["id"]), (&json!(new), &json!(agent.id)));
        feed.repeat([human, "PUT", &status], body).await;
    }
    feed.change([human, "DELETE", &format!("/agents/{}", agent.id)], Value::Null, &agent.id, &["status"]).await;

    let (service, key) = control.create_service(json!({ "name": "other" })).await;
    let of_service = format!("/services/{service}");
    let change = [human, "PATCH", &of_service];
    let changed = feed.change(change, json!({ "acceptsUnboundTokens": false }), &service, &["settings"]).await;
    assert_eq!(changed["serviceId"], service);
    feed.repeat(change, json!({ "name": "renamed" })).await;
    let of_key = format!("{of_service}/keys/key_{}", &key["svc_sk_".len()..][..26]);
    feed.change([human, "DELETE", &of_key], Value::Null, &service, &["settings"]).await;
    feed.repeat([human, "DELETE", &of_key], Value::Null).await;
    feed.change([human, "DELETE", &of_service], Value::Null, &service, &["definitions", "settings"]).await;

    let kid = control.signing_key("signing").await;
    let of_kid = format!("/signing-keys/{kid}");
    feed.change([human, "DELETE", &of_kid], Value::Null, "", &["keys"]).await;
    feed.repeat([human, "DELETE", &of_kid], Value::Null).await;
    // The request schedules a rotation to the next key, and publishes another key, which will follow the next key.
    feed.change([human, "POST", "/signing-keys/rotate"], Value::Null, "", &["keys"]).await;
    feed.repeat([human, "POST", "/signing-keys/rotate"], Value::Null).await;
}
