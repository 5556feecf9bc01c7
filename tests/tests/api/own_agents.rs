//! What the owner of an agent can read and decide about it.

use countersign_tests::{Agent, ControlPlane, HttpResponse, Sidecar, Verifiers, VerifyOutcome};
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
        // The id makes the user unique among the tests that share the control plane.
        let owner = control.mint_human(&format!("owner at {}", control.service()));
        let agent = Agent::register_as(&control, &owner, "own").await;
        let role = control.assign_new_role(&agent.id, "member", &["read"]).await;
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
        let path = format!("/agents/{}/roles", self.agent.id);
        self.control.send("POST", &path, json!({ "roleId": self.role })).await
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
    let has_roles = |expected: &'static [&'static str]| move |outcome: &VerifyOutcome| outcome.has_roles(expected);
    verifiers.wait_until_equal("the agent has the role", &token, has_roles(&["member"])).await;
    let before = own.services().await;
    assert_eq!(before[0]["serviceId"], own.control.service());
    assert_eq!(before[0]["roles"], json!([{ "name": "member", "expiresAt": null }]));
    assert_eq!((&before[0]["mayAssignRoles"], &before[0]["leftAt"]), (&json!(true), &Value::Null));

    let left = own.set_admission(&own.owner, false).await.expect(200);
    assert_eq!((&left["mayAssignRoles"], &left["revokedRoles"]), (&json!(false), &json!(1)));
    verifiers.wait_until_equal("the agent has no role", &token, has_roles(&[])).await;
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
    verifiers.wait_until_equal("the agent has the role again", &token, has_roles(&["member"])).await;
    let of_service = own.control.audit_entries(&format!("&serviceId={}", own.control.service())).await;
    let ended: Vec<_> = of_service.iter().filter(|entry| entry["action"] == "role.revoked").collect();
    assert_eq!(ended.len(), 1, "{of_service:?}");
    assert_eq!((&ended[0]["agentId"], &ended[0]["details"]["reason"]), (&json!(own.agent.id), &json!("agent_left")));
    assert_eq!((&ended[0]["actor"]["kind"], &ended[0]["address"]), (&json!("system"), &Value::Null));
    let has_left = of_service.iter().any(|entry| entry["action"] == "agent.left");
    assert!(!has_left, "the service does not learn who owns the agent: {of_service:?}");
    let entries = own.control.audit_entries(&format!("&agentId={}", own.agent.id)).await;
    for action in ["agent.left", "agent.service_readmitted"] {
        assert_eq!(entries.iter().filter(|entry| entry["action"] == action).count(), 1, "{entries:?}");
    }
}

/// If the name of each left service were listed, the owner of any agent could read the name of a service by leaving it.
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
        assert_eq!(refused.reason(), (403, "not_yours"), "{refused:?}");
    }
    assert_eq!(own.services().await[0]["mayAssignRoles"], true);
    own.set_admission(own.control.human(), false).await.expect(200);
    assert_eq!(own.services().await[0]["mayAssignRoles"], false);
}
