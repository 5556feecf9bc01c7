//! Tests that a commit wakes the sync streams of its process. The control plane of these tests never polls its database,
//! so a change that does not wake the stream never arrives.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]

use countersign_client::{Api, PrivateKey};
use countersign_control_plane::Dependencies;
use countersign_proto::v1::Delta;
use countersign_tests::{Follower, InProcessServer};
use secrecy::ExposeSecret;
use serde_json::{Value, json};
use std::time::Duration;
use tempfile::TempDir;

/// Time after which a test fails if a change has not arrived.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A control plane that does not poll, and an open sync stream of its development service.
struct Fixture {
    server: InProcessServer,
    folder: TempDir,
    follower: Follower,
}

impl Fixture {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let dependencies = Dependencies { change_poll_interval: Duration::MAX, ..Dependencies::default() };
        let server = InProcessServer::start_with(folder.path(), &[], dependencies).await;
        let follower = server.follow(folder.path()).await;
        Self { server, folder, follower }
    }

    /// Calls the API with a credential from `dev.env`.
    async fn send(&self, credential: &str, method: &str, path: &str, body: Value, status: u16) -> Value {
        let bearer = InProcessServer::env(self.folder.path(), credential);
        self.server.api.send_as(&bearer, method, path, body).await.expect(status)
    }

    fn service_path(&self, path: &str) -> String {
        format!("/services/{}{path}", InProcessServer::env(self.folder.path(), "SERVICE_ID"))
    }

    /// The next delta of the stream. The test sends no ping, so only a commit can cause a delta.
    async fn delta(&mut self, cause: &str) -> Delta {
        let delta = tokio::time::timeout(TIMEOUT, self.follower.delta()).await;
        delta.unwrap_or_else(|_| panic!("{cause}: the commit did not wake the stream"))
    }
}

#[tokio::test]
async fn commit_of_every_revocation_wakes_the_stream() {
    let mut fixture = Fixture::new().await;
    let authority = std::fs::read(fixture.folder.path().join("ca.pem")).unwrap();
    let client = Api::new(&fixture.server.api.url, Some(&authority)).unwrap();
    let key = PrivateKey::generate();
    let agent = client.register(&key, "owner@example.org", "agent", None).await.unwrap().agent_id;
    let tokens = client.login(&key, &agent, None).await.unwrap();

    let role = json!({ "name": "reader", "description": "", "permissions": ["read"] });
    let role = fixture.send("SERVICE_KEY", "POST", &fixture.service_path("/roles"), role, 201).await;
    assert_eq!(fixture.delta("a new role").await.roles.unwrap().roles.len(), 1);
    let assignments = fixture.service_path(&format!("/agents/{agent}/roles"));
    let assignment = json!({ "roleId": role["roleId"] });
    fixture.send("SERVICE_KEY", "POST", &assignments, assignment, 200).await;
    assert_eq!(fixture.delta("an assignment").await.agents[0].roles.as_ref().unwrap().grants.len(), 1);

    let assignment = format!("{assignments}/{}", role["roleId"].as_str().unwrap());
    fixture.send("SERVICE_KEY", "DELETE", &assignment, json!({}), 200).await;
    assert!(fixture.delta("a revoked role").await.agents[0].roles.as_ref().unwrap().grants.is_empty());

    let token = json!({ "token": tokens.access_token.expose_secret() });
    fixture.server.api.post("/auth/revoke", token).await.expect(200);
    let revoked = fixture.delta("a revoked token").await;
    assert_eq!(revoked.revocations.len(), 1, "{revoked:?}");

    let status = json!({ "status": "suspended" });
    fixture.send("HUMAN_TOKEN", "PUT", &format!("/agents/{agent}/status"), status, 200).await;
    assert!(fixture.delta("a suspended agent").await.agents[0].status.is_some());

    let keys = fixture.send("HUMAN_TOKEN", "GET", "/signing-keys", json!({}), 200).await;
    let signing = keys["data"].as_array().unwrap().iter().find(|key| key["status"] == "signing").unwrap();
    let path = format!("/signing-keys/{}", signing["kid"].as_str().unwrap());
    fixture.send("HUMAN_TOKEN", "DELETE", &path, json!({}), 200).await;
    assert!(fixture.delta("a revoked signing key").await.keys.is_some());
}
