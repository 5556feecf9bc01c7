//! Tests that a control plane verifies from memory only what the database still contains, whichever replica has changed it.

use super::{FleetAgent, Replicas};
use countersign_tests::{ControlPlane, control_plane::text, eventually};
use serde_json::{Value, json};

/// A service at which one replica makes the changes and the other one verifies.
struct Service<'a> {
    writer: &'a ControlPlane,
    reader: &'a ControlPlane,
    id: String,
    key: String,
}

/// What a verification returned: the field `agent`, or the reason of the refusal.
type Verified = Result<Value, String>;

impl<'a> Service<'a> {
    async fn create(replicas: &'a Replicas) -> Self {
        let [writer, reader] = replicas.both();
        let (id, key) = writer.create_service(json!({ "name": "Of two replicas" })).await;
        Self { writer, reader, id, key }
    }

    fn path(&self, below: &str) -> String {
        format!("/services/{}{below}", self.id)
    }

    async fn change(&self, method: &str, below: &str, body: Value) -> Value {
        let response = self.writer.api.send_as(&self.key, method, &self.path(below), body).await;
        assert!([200, 201].contains(&response.status), "{below}: {}", response.body);
        response.body
    }

    async fn change_settings(&self, body: Value) {
        self.writer.api.send_as(self.writer.human(), "PATCH", &self.path(""), body).await.expect(200);
    }

    async fn verify(&self, token: &str) -> Verified {
        let response = self.reader.verify_at(&self.id, &self.key, token).await;
        if response.status == 200 { Ok(response.body["agent"].clone()) } else { Err(response.error().2.to_owned()) }
    }

    /// Verifies a token until the control plane answers from memory. As long as a new trust score of the agent is not in the change
    /// feed yet, the control plane reads from the database.
    async fn remember(&self, token: &str) -> Value {
        let first = self.verify(token).await.unwrap();
        let admin = self.reader.admin();
        let hits = async || admin.metric("countersign_verification_cache_hits_total").await.unwrap();
        let is_from_memory = async || {
            let before = hits().await;
            assert_eq!(self.verify(token).await.unwrap(), first);
            (hits().await > before).then_some(())
        };
        eventually("the token is verified from memory", is_from_memory, || self.reader.log()).await;
        first
    }

    /// An agent with a role, and its token for the service.
    async fn agent(&self, role: &str) -> (FleetAgent, String) {
        let agent = FleetAgent::register(self.writer).await;
        self.change("POST", &format!("/agents/{}/roles", agent.id), json!({ "roleId": role })).await;
        let token = self.token(&agent).await;
        (agent, token)
    }

    async fn token(&self, agent: &FleetAgent) -> String {
        text(&self.login(agent).await["accessToken"])
    }

    async fn login(&self, agent: &FleetAgent) -> Value {
        agent.login_for(self.writer, &self.id).await.expect(200)
    }

    async fn create_role(&self, name: &str, permissions: &[&str]) -> String {
        text(&self.change("POST", "/roles", json!({ "name": name, "permissions": permissions })).await["roleId"])
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_of_roles_and_trust_apply_to_the_next_verification() {
    let replicas = Replicas::start().await;
    let (first, service) = (&replicas.first, Service::create(&replicas).await);
    let reader = service.create_role("reader", &["read"]).await;
    let writer = service.create_role("writer", &["write"]).await;
    let (agent, token) = service.agent(&reader).await;
    assert_eq!(service.remember(&token).await["permissions"], json!(["read"]));

    service.change("POST", &format!("/agents/{}/roles", agent.id), json!({ "roleId": writer })).await;
    assert_eq!(service.remember(&token).await["roles"], json!(["reader", "writer"]));
    service.change("PATCH", &format!("/roles/{reader}"), json!({ "permissions": ["look"] })).await;
    assert_eq!(service.remember(&token).await["permissions"], json!(["look", "write"]));
    service.change("DELETE", &format!("/agents/{}/roles/{writer}", agent.id), json!({})).await;
    assert_eq!(service.remember(&token).await["roles"], json!(["reader"]));
    for score in [100, 0, 70] {
        let body = json!({ "agentId": agent.id, "score": score });
        let rated = first.api.send_as(&service.key, "POST", "/trust/feedback", body).await.expect(200);
        let trust = &rated["newTrustScore"];
        assert_eq!(&service.verify(&token).await.unwrap()["trustScore"], trust);
    }
    service.change("DELETE", &format!("/roles/{reader}"), json!({})).await;
    assert_eq!(service.remember(&token).await["roles"], json!([]));

    service.change("POST", &format!("/agents/{}/roles", agent.id), json!({ "roleId": writer })).await;
    assert_eq!(service.remember(&token).await["roles"], json!(["writer"]));
    let admission = format!("/agents/{}/services/{}", agent.id, service.id);
    let leave = json!({ "mayAssignRoles": false });
    first.api.send_as(first.human(), "PUT", &admission, leave).await.expect(200);
    assert_eq!(service.verify(&token).await.unwrap()["roles"], json!([]), "the agent has left the service");
}

#[tokio::test(flavor = "multi_thread")]
async fn revocations_apply_to_the_next_verification() {
    let replicas = Replicas::start().await;
    let (first, service) = (&replicas.first, Service::create(&replicas).await);
    let role = service.create_role("reader", &["read"]).await;
    let refused = |reason: &str| Err(reason.to_owned());

    let (agent, token) = service.agent(&role).await;
    service.remember(&token).await;
    first.revoke_token(&token).await;
    assert_eq!(service.verify(&token).await, refused("token_revoked"));

    let session = service.login(&agent).await;
    let token = text(&session["accessToken"]);
    service.remember(&token).await;
    let refresh = json!({ "refreshToken": session["refreshToken"] });
    first.api.post("/auth/refresh", refresh.clone()).await.expect(200);
    service.remember(&token).await;
    first.api.post("/auth/refresh", refresh).await.error();
    assert_eq!(service.verify(&token).await, refused("token_revoked"), "a used refresh token ends the session");

    let session = service.login(&agent).await;
    let token = text(&session["accessToken"]);
    service.remember(&token).await;
    first.revoke_token(&text(&session["refreshToken"])).await;
    assert_eq!(service.verify(&token).await, refused("token_revoked"));

    let token = service.token(&agent).await;
    service.remember(&token).await;
    first.set_status(&agent.id, "suspended").await.expect(200);
    assert_eq!(service.verify(&token).await, refused("agent_suspended"));
    first.set_status(&agent.id, "active").await.expect(200);
    let token = service.token(&agent).await;
    service.remember(&token).await;
    first.set_status(&agent.id, "revoked").await.expect(200);
    assert_eq!(service.verify(&token).await, refused("agent_revoked"));

    let (deleted, token) = service.agent(&role).await;
    service.remember(&token).await;
    let path = format!("/agents/{}", deleted.id);
    first.api.send_as(first.human(), "DELETE", &path, json!({})).await.expect(200);
    assert_eq!(service.verify(&token).await, refused("agent_revoked"));

    let (_agent, token) = service.agent(&role).await;
    service.remember(&token).await;
    let signing = first.signing_key("signing").await;
    assert!(first.revoke_signing_key(&signing).await);
    assert_eq!(service.verify(&token).await, refused("token_key_unknown"));
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_of_the_service_apply_to_the_next_verification() {
    let replicas = Replicas::start().await;
    let (first, mut service) = (&replicas.first, Service::create(&replicas).await);
    let unbound = FleetAgent::register(first).await.token(first).await;
    service.remember(&unbound).await;
    service.change_settings(json!({ "acceptsUnboundTokens": false })).await;
    assert_eq!(service.verify(&unbound).await, Err("token_unbound".to_owned()));
    service.change_settings(json!({ "acceptsUnboundTokens": true })).await;
    service.remember(&unbound).await;

    let key = first.create_key(&service.id, "sync").await;
    let revoked = std::mem::replace(&mut service.key, key);
    let keys = first.api.get_as(first.human(), &service.path("/keys")).await.expect(200);
    let revoked_id =
        keys["data"].as_array().unwrap().iter().find(|key| key["scope"] == "full").unwrap()["keyId"].clone();
    service.remember(&unbound).await;
    let path = service.path(&format!("/keys/{}", text(&revoked_id)));
    first.api.send_as(first.human(), "DELETE", &path, json!({})).await.expect(200);
    let kept = std::mem::replace(&mut service.key, revoked);
    assert_eq!(service.verify(&unbound).await, Err("service_key_invalid".to_owned()));
    service.key = kept;
    service.remember(&unbound).await;

    first.api.send_as(first.human(), "DELETE", &service.path(""), json!({})).await.expect(200);
    assert_eq!(service.verify(&unbound).await, Err("service_key_invalid".to_owned()));
}
