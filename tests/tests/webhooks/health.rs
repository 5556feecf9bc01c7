//! `webhook_queue` in `/health`: up, degraded with a backlog, or down.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use countersign_client::PrivateKey;
use countersign_tests::{InProcessServer, ManualClock, Receiver, Reply, engines, eventually};
use serde_json::{Value, json};
use sqlx::{AnyConnection, Connection, Executor};
use std::{sync::Arc, time::Duration};
use tempfile::TempDir;

struct Fixture {
    clock: Arc<ManualClock>,
    server: InProcessServer,
    folder: TempDir,
    receiver: Receiver,
    agent: String,
    /// The path of the pending deliveries.
    deliveries: String,
}

impl Fixture {
    async fn new() -> Self {
        let (clock, folder) = (ManualClock::new(), tempfile::tempdir().unwrap());
        let receiver = Receiver::start(Reply::Held).await;
        let server = InProcessServer::start(folder.path(), &[], &clock).await;
        let key = PrivateKey::generate().public_pem().unwrap();
        let agent = json!({ "email": "o@example.org", "name": "Agent", "publicKey": key });
        let agent = server.api.post("/auth/register", agent).await.expect(201);
        let agent = agent["agentId"].as_str().unwrap().to_owned();
        let fixture = Self { clock, server, folder, receiver, agent, deliveries: String::new() };
        let path = format!("/services/{}/webhooks", InProcessServer::env(fixture.folder.path(), "SERVICE_ID"));
        let webhook =
            fixture.send(&path, json!({ "url": fixture.receiver.url })).await["webhookId"].as_str().unwrap().to_owned();
        Self { deliveries: format!("{path}/{webhook}/deliveries?status=pending"), ..fixture }
    }

    async fn send(&self, path: &str, body: Value) -> Value {
        let key = InProcessServer::env(self.folder.path(), "SERVICE_KEY");
        let response = self.server.api.send_as(&key, "POST", path, body).await;
        assert!(response.status < 300, "{}", response.body);
        response.body
    }

    async fn event(&self) {
        self.send("/trust/feedback", json!({ "agentId": self.agent, "score": 50 })).await;
    }

    async fn health(&self) -> (u16, Value, Value) {
        let response = self.server.api.get("/health").await;
        (response.status, response.body["status"].clone(), response.body["checks"]["webhook_queue"].clone())
    }

    async fn set_status(&self, status: &str) {
        let (webhook, _) = self.deliveries.split_once("/deliveries").unwrap();
        let key = InProcessServer::env(self.folder.path(), "SERVICE_KEY");
        let changed = self.server.api.send_as(&key, "PATCH", webhook, json!({ "status": status })).await.expect(200);
        assert_eq!(changed["status"], status);
    }

    async fn until_pending(&self, count: usize) {
        let key = InProcessServer::env(self.folder.path(), "SERVICE_KEY");
        let all = async || {
            let page = self.server.api.get_as(&key, &self.deliveries).await.expect(200);
            (page["pagination"]["total"] == count).then_some(())
        };
        eventually("all events are pending", all, String::new).await;
    }

    async fn until(&self, status: &str, queue: &str) {
        let expected = (200, json!(status), json!(queue));
        let is_expected = async || (self.health().await == expected).then_some(());
        eventually(&format!("health is {status} and the queue is {queue}"), is_expected, String::new).await;
    }
}

#[tokio::test]
async fn waiting_events_of_a_working_receiver_are_reported_as_backlog() {
    let fixture = Fixture::new().await;
    fixture.until("healthy", "up").await;
    for _ in 0..8 {
        fixture.event().await;
    }
    // The first request is still unanswered.
    fixture.until_pending(8).await;
    fixture.until("healthy", "up").await;
    fixture.clock.advance(Duration::from_mins(6));
    fixture.until("degraded", "degraded").await;
    fixture.receiver.set_reply(Reply::Status(200));
    fixture.until("healthy", "up").await;
}

#[tokio::test]
async fn failing_receiver_does_not_degrade_health() {
    let fixture = Fixture::new().await;
    fixture.receiver.set_reply(Reply::Status(500));
    for _ in 0..8 {
        fixture.event().await;
    }
    fixture.clock.advance(Duration::from_mins(6));
    // Longer than the interval of the health check.
    for _ in 0..12 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(fixture.health().await, (200, json!("healthy"), json!("up")));
    }
}

#[tokio::test]
async fn paused_time_is_not_reported_as_backlog() {
    let fixture = Fixture::new().await;
    fixture.set_status("paused").await;
    for _ in 0..8 {
        fixture.event().await;
    }
    fixture.until_pending(8).await;
    fixture.clock.advance(Duration::from_hours(1));
    fixture.set_status("active").await;
    for _ in 0..12 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(fixture.health().await, (200, json!("healthy"), json!("up")));
    }
    // Time after the pause counts.
    fixture.clock.advance(Duration::from_mins(6));
    fixture.until("degraded", "degraded").await;
}

#[tokio::test]
async fn dispatcher_that_cannot_read_its_queue_is_reported_down() {
    let fixture = Fixture::new().await;
    fixture.receiver.set_reply(Reply::Status(500));
    fixture.event().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    sqlx::any::install_default_drivers();
    let file = || format!("sqlite://{}", fixture.folder.path().join("countersign.db").display());
    let url = engines::database_of(fixture.folder.path()).await.unwrap_or_else(file);
    let mut other = AnyConnection::connect(&url).await.unwrap();
    // Hold the only write transaction of SQLite, or lock the whole table.
    let [begin, lock] = if engines::use_postgres_and_redis() {
        ["BEGIN", "LOCK TABLE webhook_deliveries IN EXCLUSIVE MODE"]
    } else {
        ["BEGIN IMMEDIATE", "SELECT 1"]
    };
    other.execute(begin).await.unwrap();
    other.execute(lock).await.unwrap();
    // The next attempt is due, and cannot be read.
    fixture.clock.advance(Duration::from_secs(10));
    tokio::time::sleep(Duration::from_secs(2)).await;
    fixture.clock.advance(Duration::from_secs(20));
    // 200, because the API still works.
    fixture.until("degraded", "down").await;
    other.execute("ROLLBACK").await.unwrap();
    fixture.until("healthy", "up").await;
}
