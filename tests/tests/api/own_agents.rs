//! What the owner of an agent reads and decides.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]

use countersign_tests::{Agent, ControlPlane, HttpResponse, Sidecar, Verifiers, VerifyOutcome, control_plane::text};
use serde_json::{Value, json};

/// An agent of a human user, with a role at the first service.
struct OwnAgent {
    control: ControlPlane,
    owner: String,
    agent: Agent,
    role: String,
}

impl OwnAgent {
    async fn new() -> Self {
        let control = ControlPlane::shared().await;
        let mut agent = Agent::register(&control, "public").await;
        // The id makes the user unique among the tests that share the control plane.
        let owner = control.mint_human(&format!("owner of {}", agent.id));
        let public_key = agent.key.public_pem().unwrap();
        let body = json!({ "email": "a@example.org", "name": "own", "publicKey": public_key });
        let registered = control.api.send_as(&owner, "POST", "/auth/register", body).await.expect(201);
        agent.id = text(&registered["agentId"]);
        let role = control.create_role("member", &["read"]).await;
        control.assign(&agent.id, &role).await;
        Self { control, owner, agent, role }
    }

    async fn set_admission(&self, human: &str, may_assign_roles: bool) -> HttpResponse {
        let path = format!("/agents/{}/services/{}", self.agent.id, self.control.service());
        self.control.api.send_as(human, "PUT", &path, json!({ "mayAssignRoles": may_assign_roles })).await
    }

    async fn services(&self) -> Value {
        let path = format!("/agents/{}/services", self.agent.id);
        self.control.api.get_as(&self.owner, &path).await.expect(200)["data"].clone()
    }

    async fn assign(&self) -> HttpResponse {
        let path = self.control.path(&format!("/agents/{}/roles", self.agent.id));
        self.control.api.send_as(self.control.key(), "POST", &path, json!({ "roleId": self.role })).await
    }
}

#[tokio::test]
async fn owner_lists_own_agents_and_nobody_elses() {
    let OwnAgent { control, owner, agent, role: _ } = OwnAgent::new().await;
    let listed = control.api.get_as(&owner, "/agents").await.expect(200);
    assert_eq!(listed["pagination"]["total"], 1);
    assert_eq!((&listed["data"][0]["id"], &listed["data"][0]["name"]), (&json!(agent.id), &json!("own")));
    let stranger = control.mint_human("a stranger without agents");
    assert_eq!(control.api.get_as(&stranger, "/agents").await.expect(200)["data"], json!([]));
}

#[tokio::test]
async fn left_service_loses_its_roles_everywhere_and_assigns_none_until_readmitted() {
    let own = OwnAgent::new().await;
    let sidecar = Sidecar::start(&own.control).await;
    let verifiers = Verifiers::new(&own.control, &sidecar);
    let token = own.agent.token_for(own.control.service()).await;
    let has_role =
        |outcome: &VerifyOutcome| matches!(outcome, VerifyOutcome::Accepted { roles, .. } if roles == &["member"]);
    let has_none =
        |outcome: &VerifyOutcome| matches!(outcome, VerifyOutcome::Accepted { roles, .. } if roles.is_empty());
    verifiers.wait_until_equal("the agent has the role", &token, has_role).await;
    let before = own.services().await;
    assert_eq!(before[0]["serviceId"], own.control.service());
    assert_eq!(before[0]["roles"], json!([{ "name": "member", "expiresAt": null }]));
    assert_eq!((&before[0]["mayAssignRoles"], &before[0]["leftAt"]), (&json!(true), &Value::Null));

    let left = own.set_admission(&own.owner, false).await.expect(200);
    assert_eq!((&left["mayAssignRoles"], &left["revokedRoles"]), (&json!(false), &json!(1)));
    verifiers.wait_until_equal("the agent has no role", &token, has_none).await;
    let again = own.set_admission(&own.owner, false).await.expect(200);
    assert_eq!((&again["mayAssignRoles"], &again["revokedRoles"]), (&json!(false), &json!(0)));
    let refused = own.assign().await;
    assert_eq!(refused.error(), (409, "CONFLICT", "agent_left"), "{refused:?}");
    assert!(refused.text("/error/message").contains("has left this service"), "{refused:?}");
    let after = own.services().await;
    assert_eq!((&after[0]["roles"], &after[0]["mayAssignRoles"]), (&json!([]), &json!(false)));
    assert!(after[0]["leftAt"].is_string());
    assert_eq!(after[0]["name"], before[0]["name"]);

    own.set_admission(&own.owner, true).await.expect(200);
    assert_eq!(own.services().await, json!([]));
    own.assign().await.expect(200);
    verifiers.wait_until_equal("the agent has the role again", &token, has_role).await;
    let path = format!("/audit?serviceId={}", own.control.service());
    let of_service = own.control.api.get_as(own.control.human(), &path).await.expect(200);
    let ended: Vec<_> =
        of_service["data"].as_array().into_iter().flatten().filter(|entry| entry["action"] == "role.revoked").collect();
    assert_eq!(ended.len(), 1, "{of_service}");
    assert_eq!((&ended[0]["agentId"], &ended[0]["details"]["reason"]), (&json!(own.agent.id), &json!("agent_left")));
    assert_eq!((&ended[0]["actor"]["kind"], &ended[0]["address"]), (&json!("system"), &Value::Null));
    let of_service = of_service.to_string();
    assert!(!of_service.contains("agent.left"), "the service does not learn who owns the agent: {of_service}");
    let entries = own.control.api.get_as(own.control.human(), &format!("/audit?agentId={}", own.agent.id)).await;
    let entries = entries.expect(200);
    let actions: Vec<_> =
        entries["data"].as_array().into_iter().flatten().map(|entry| text(&entry["action"])).collect();
    for action in ["agent.left", "agent.service_readmitted"] {
        assert_eq!(actions.iter().filter(|listed| *listed == action).count(), 1, "{actions:?}");
    }
}

/// Otherwise, the owner of any agent could read the name of a service by leaving it.
#[tokio::test]
async fn name_of_a_left_service_is_listed_only_if_it_gave_the_agent_a_role() {
    let own = OwnAgent::new().await;
    let (stranger, _) = own.control.create_service(json!({ "name": "a secret project" })).await;
    let path = format!("/agents/{}/services/{stranger}", own.agent.id);
    own.control.api.send_as(&own.owner, "PUT", &path, json!({ "mayAssignRoles": false })).await.expect(200);
    let services = own.services().await;
    assert_eq!((&services[0]["serviceId"], &services[0]["name"]), (&json!(stranger), &Value::Null));
    assert!(!services.to_string().contains("secret"), "{services}");
}

#[tokio::test]
async fn only_the_owner_and_administrators_decide_for_an_agent() {
    let own = OwnAgent::new().await;
    let stranger = own.control.mint_human("mallory");
    let services = format!("/agents/{}/services", own.agent.id);
    for refused in [own.set_admission(&stranger, false).await, own.control.api.get_as(&stranger, &services).await] {
        assert_eq!((refused.status, refused.error().2), (403, "not_yours"), "{refused:?}");
    }
    assert_eq!(own.services().await[0]["mayAssignRoles"], true);
    own.set_admission(own.control.human(), false).await.expect(200);
    assert_eq!(own.services().await[0]["mayAssignRoles"], false);
}
