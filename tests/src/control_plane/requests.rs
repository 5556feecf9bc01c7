//! Requests that many tests send to a control plane.

use super::ControlPlane;
use crate::{
    Postgres,
    http::{HttpResponse, items},
};
use serde_json::{Value, json};

impl ControlPlane {
    /// Starts a process with SQLite and another with PostgreSQL.
    pub async fn start_on_both_engines(postgres: &Postgres) -> [Self; 2] {
        let setting = format!("database.url={}", postgres.create_database().await);
        [Self::start_process_with(&["database.url="]).await, Self::start_process_with(&[&setting]).await]
    }

    /// Reads a path below the first service, with its API key.
    pub async fn get(&self, below: &str) -> HttpResponse {
        self.api.get_as(self.key(), &self.path(below)).await
    }

    /// Sends a request to a path below the first service, with its API key.
    pub async fn send(&self, method: &str, below: &str, body: Value) -> HttpResponse {
        self.api.send_as(self.key(), method, &self.path(below), body).await
    }

    /// Creates a role at the first service and assigns it to an agent. Returns the role id.
    pub async fn assign_new_role(&self, agent: &str, name: &str, permissions: &[&str]) -> String {
        let role = self.create_role(name, permissions).await;
        self.assign(agent, &role).await;
        role
    }

    /// Submits feedback of the service with this API key, and returns the new trust score.
    pub async fn rate(&self, key: &str, agent: &str, score: impl Into<Value>) -> f64 {
        let body = json!({ "agentId": agent, "score": score.into() });
        let response = self.api.send_as(key, "POST", "/trust/feedback", body).await.expect(200);
        response["newTrustScore"].as_f64().expect("the value is a number")
    }

    /// All audit entries that match a query such as `&action=role.created`, newest first, as an administrator reads them.
    pub async fn audit_entries(&self, query: &str) -> Vec<Value> {
        let mut entries: Vec<Value> = Vec::new();
        loop {
            let path = format!("/audit?limit=200&offset={}{query}", entries.len());
            let page = self.api.get_as(self.human(), &path).await.expect(200);
            entries.extend_from_slice(items(&page));
            if page["pagination"]["hasMore"] == false {
                return entries;
            }
        }
    }

    /// The report of `audit verify`, and whether all chains are intact.
    pub fn verify_audit(&self) -> (String, bool) {
        let output = self.command(&["audit", "verify"]);
        (String::from_utf8(output.stdout).expect("the text is UTF-8"), output.status.success())
    }

    /// Asserts that `audit verify` reports every chain as intact.
    #[track_caller]
    pub fn assert_audit_intact(&self) {
        let (report, valid) = self.verify_audit();
        assert!(valid && report.lines().all(|line| line.contains(": ok, ")), "{report}");
    }
}
