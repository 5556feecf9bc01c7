//! Tests requests that change many role assignments of one service at the same time.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]

use countersign_tests::{Agent, ControlPlane, Database, HttpResponse, Postgres, Receiver, Target, http::items};
use futures_util::future::join_all;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Number of agents whose roles change at the same time: more than the control plane has database connections.
const AGENTS: usize = 40;

/// A service, and agents that get its role.
struct Fixture<'a> {
    control: &'a ControlPlane,
    role: String,
    agents: Vec<Agent>,
    database: Database,
}

impl Fixture<'_> {
    /// Sends a request that assigns a role.
    async fn assign(&self, key: &str, agent: &str, role: &str, expires_at: Option<&str>) -> HttpResponse {
        let (path, body) = (format!("/agents/{agent}/roles"), json!({ "roleId": role, "expiresAt": expires_at }));
        self.control.api.send_as(key, "POST", &self.control.path(&path), body).await
    }

    async fn revoke(&self, agent: &str) -> Value {
        let path = self.control.path(&format!("/agents/{agent}/roles/{}", self.role));
        self.control.api.delete_as(self.control.key(), &path).await.expect(200)
    }

    /// Assigns the role to all agents at the same time, with other requests that must be refused. Returns the revisions in the
    /// answers.
    async fn assign_all(&self) -> Vec<i64> {
        let control = self.control;
        let key = control.key();
        let sync_key = control.create_key(control.service(), "sync").await;
        let unknown_agent = "agent_00000000000000000000000001";
        let unknown_role = "role_00000000000000000000000001";
        let some_agent = self.agents[0].id.as_str();
        let assign = join_all(self.agents.iter().map(|agent| self.assign(key, &agent.id, &self.role, None)));
        let refused = async |key, agent, role, expires_at| {
            let response = self.assign(key, agent, role, expires_at).await;
            (response.status, response.body["error"]["message"].as_str().unwrap().to_owned())
        };
        let (assigned, no_agent, no_role, expired, forbidden) = tokio::join!(
            assign,
            refused(key, unknown_agent, self.role.as_str(), None),
            refused(key, some_agent, unknown_role, None),
            refused(key, some_agent, self.role.as_str(), Some("2020-01-01T00:00:00Z")),
            refused(&sync_key, some_agent, self.role.as_str(), None),
        );
        assert_eq!((no_agent.0, no_role.0, expired.0, forbidden.0), (404, 404, 400, 403));
        assert!(no_agent.1.contains("agent") && no_role.1.contains("role"), "{no_agent:?} {no_role:?}");
        assert!(expired.1.contains("expiresAt"), "{expired:?}");
        assigned.into_iter().map(|response| response.expect(200)["revision"].as_i64().unwrap()).collect()
    }

    /// Asserts that the feed has one change of each agent's roles, under the revision in the answer.
    async fn assert_changed_at(&mut self, revisions: &[i64]) {
        for (agent, revision) in self.agents.iter().zip(revisions) {
            let sql = format!(
                "SELECT CAST(recipient AS TEXT) FROM changes WHERE revision = {revision} AND subject = '{}' AND facet = 'roles'",
                agent.id
            );
            assert_eq!(self.database.text_column(&sql).await, [self.control.service()]);
        }
    }

    async fn holders(&self) -> usize {
        items(&self.control.get("/agents?limit=100").await.expect(200)).len()
    }
}

#[tokio::test]
async fn changes_at_the_same_time_are_each_answered_and_recorded_once() {
    let postgres = Postgres::start().await;
    for control in ControlPlane::start_on_both_engines(&postgres).await {
        let receiver = Receiver::start_ok().await;
        let _target = Target::create(&control, &receiver.url).await;
        let role = control.create_role("reader", &["read"]).await;
        let agents = join_all((0..AGENTS).map(|_| Agent::register(&control, "agent"))).await;
        let database = Database::connect_to(&control).await;
        let mut fixture = Fixture { control: &control, role, agents, database };
        let revisions = fixture.assign_all().await;
        fixture.assert_changed_at(&revisions).await;
        assert_eq!(fixture.holders().await, AGENTS);

        // Two requests revoke the role of each agent. Exactly one of them finds the role assigned.
        let twice = fixture.agents.iter().chain(&fixture.agents).map(|agent| fixture.revoke(&agent.id));
        let answers = join_all(twice).await;
        let (first, second) = answers.split_at(AGENTS);
        let mut revisions = Vec::new();
        for (first, second) in first.iter().zip(second) {
            assert!((first["revoked"] == true) ^ (second["revoked"] == true), "{first} {second}");
            let revoked = if first["revoked"] == true { first } else { second };
            revisions.push(revoked["revision"].as_i64().unwrap());
        }
        fixture.assert_changed_at(&revisions).await;
        assert_eq!(fixture.holders().await, 0);

        control.assert_audit_intact();
        for action in ["agent.registered", "role.assigned", "role.revoked"] {
            let recorded = control.audit_entries(&format!("&action={action}")).await;
            assert_eq!(recorded.len(), AGENTS, "{action}");
        }
        receiver.wait_for_requests(2 * AGENTS).await;
        for kind in ["agent.role_assigned", "agent.role_revoked"] {
            let agents: BTreeSet<_> =
                receiver.of_kind(kind).iter().map(|event| event.data()["agentId"].to_string()).collect();
            assert_eq!((receiver.of_kind(kind).len(), agents.len()), (AGENTS, AGENTS), "{kind}");
        }
    }
}

/// The changes of one agent take effect in the order of the requests, while other agents change too.
#[tokio::test]
async fn changes_of_one_agent_follow_each_other() {
    let control = ControlPlane::start().await;
    let agent = Agent::register(&control, "agent").await;
    let role = control.create_role("reader", &["read"]).await;
    let others = join_all((0..8).map(|_| Agent::register(&control, "other"))).await;
    for _ in 0..5 {
        let change = async {
            for _ in 0..5 {
                control.assign(&agent.id, &role).await;
                assert!(control.revoke(&agent.id, &role).await);
                assert!(!control.revoke(&agent.id, &role).await);
            }
        };
        let meanwhile = join_all(others.iter().map(async |other| {
            for _ in 0..5 {
                control.assign(&other.id, &role).await;
                assert!(control.revoke(&other.id, &role).await);
            }
        }));
        tokio::join!(change, meanwhile);
    }
}
