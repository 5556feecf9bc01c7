//! Tests of `webhook_queue` in `/health`, which is up, degraded with a backlog, or down.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]

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
    /// The path that lists the pending deliveries.
    deliveries: String,
}

impl Fixture {
    async fn new() -> Self {
        let (clock, folder) = (ManualClock::new(), tempfile::tempdir().unwrap());
        let receiver = Receiver::start(Reply::Pending).await;
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

    async fn emit_event(&self) {
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

    async fn wait_until_pending(&self, count: usize) {
        let key = InProcessServer::env(self.folder.path(), "SERVICE_KEY");
        let counted = async || {
            let page = self.server.api.get_as(&key, &self.deliveries).await.expect(200);
            (page["pagination"]["total"] == count).then_some(())
        };
        eventually("all events are pending", counted, String::new).await;
    }

    async fn wait_for_health(&self, status: &str, queue: &str) {
        let expected = (200, json!(status), json!(queue));
        let is_expected = async || (self.health().await == expected).then_some(());
        eventually(&format!("health is {status} and the queue is {queue}"), is_expected, String::new).await;
    }
}

#[tokio::test]
async fn waiting_events_of_a_working_receiver_are_reported_as_backlog() {
    let fixture = Fixture::new().await;
    fixture.wait_for_health("healthy", "up").await;
    for _ in 0..8 {
        fixture.emit_event().await;
    }
    // The receiver has not responded to the first request yet.
    fixture.wait_until_pending(8).await;
    fixture.wait_for_health("healthy", "up").await;
    fixture.clock.advance(Duration::from_mins(6));
    fixture.wait_for_health("degraded", "degraded").await;
    fixture.receiver.set_reply(Reply::Status(200));
    fixture.wait_for_health("healthy", "up").await;
}

#[tokio::test]
async fn failing_receiver_does_not_degrade_health() {
    let fixture = Fixture::new().await;
    fixture.receiver.set_reply(Reply::Status(500));
    for _ in 0..8 {
        fixture.emit_event().await;
    }
    fixture.clock.advance(Duration::from_mins(6));
    // The test reads the health for longer than the interval of the health check.
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
        fixture.emit_event().await;
    }
    fixture.wait_until_pending(8).await;
    fixture.clock.advance(Duration::from_hours(1));
    fixture.set_status("active").await;
    for _ in 0..12 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(fixture.health().await, (200, json!("healthy"), json!("up")));
    }
    // Only the time after the end of a pause counts towards the age of the backlog.
    fixture.clock.advance(Duration::from_mins(6));
    fixture.wait_for_health("degraded", "degraded").await;
}

#[tokio::test]
async fn dispatcher_that_cannot_read_its_queue_is_reported_down() {
    let fixture = Fixture::new().await;
    fixture.receiver.set_reply(Reply::Status(500));
    fixture.emit_event().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    sqlx::any::install_default_drivers();
    let sqlite_url = || format!("sqlite://{}", fixture.folder.path().join("countersign.db").display());
    let url = engines::database_for_folder(fixture.folder.path()).await.unwrap_or_else(sqlite_url);
    let mut blocker = AnyConnection::connect(&url).await.unwrap();
    // The test holds the only write transaction of SQLite, or locks the whole table in PostgreSQL.
    let [begin, lock] = if engines::use_postgres_and_redis() {
        ["BEGIN", "LOCK TABLE webhook_deliveries IN EXCLUSIVE MODE"]
    } else {
        ["BEGIN IMMEDIATE", "SELECT 1"]
    };
    blocker.execute(begin).await.unwrap();
    blocker.execute(lock).await.unwrap();
    // The next delivery attempt is due, but Countersign's webhook dispatcher cannot read the delivery from the
    // database.
    fixture.clock.advance(Duration::from_secs(10));
    tokio::time::sleep(Duration::from_secs(2)).await;
    fixture.clock.advance(Duration::from_secs(20));
    // The status code is 200, because the API still works.
    fixture.wait_for_health("degraded", "down").await;
    blocker.execute("ROLLBACK").await.unwrap();
    fixture.wait_for_health("healthy", "up").await;
}
