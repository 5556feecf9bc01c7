//! `webhook_queue` in `/health` tells the truth: events get away, wait for long, or nobody delivers them.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use countersign_client::PrivateKey;
use countersign_tests::{Hand, Receiver, Reply, SteppedPlane, engines, eventually};
use serde_json::{Value, json};
use sqlx::{AnyConnection, Connection, Executor};
use std::{sync::Arc, time::Duration};
use tempfile::TempDir;

struct Stage {
    clock: Arc<Hand>,
    plane: SteppedPlane,
    folder: TempDir,
    receiver: Receiver,
    agent: String,
    /// The path of what is on its way.
    deliveries: String,
}

impl Stage {
    async fn set() -> Self {
        let (clock, folder) = (Hand::new(), tempfile::tempdir().unwrap());
        let receiver = Receiver::start(Reply::Held).await;
        let plane = SteppedPlane::start(folder.path(), &[], &clock).await;
        let key = PrivateKey::generate().public_pem().unwrap();
        let agent = json!({ "email": "o@example.org", "name": "Agent", "publicKey": key });
        let agent = plane.api.post("/auth/register", agent).await.expect(201);
        let agent = agent["agentId"].as_str().unwrap().to_owned();
        let stage = Self { clock, plane, folder, receiver, agent, deliveries: String::new() };
        let path = format!("/services/{}/webhooks", SteppedPlane::env(stage.folder.path(), "SERVICE_ID"));
        let webhook =
            stage.send(&path, json!({ "url": stage.receiver.url })).await["webhookId"].as_str().unwrap().to_owned();
        Self { deliveries: format!("{path}/{webhook}/deliveries?status=pending"), ..stage }
    }

    async fn send(&self, path: &str, body: Value) -> Value {
        let key = SteppedPlane::env(self.folder.path(), "SERVICE_KEY");
        let answer = self.plane.api.send_as(&key, "POST", path, body).await;
        assert!(answer.status < 300, "{}", answer.body);
        answer.body
    }

    async fn event(&self) {
        self.send("/trust/feedback", json!({ "agentId": self.agent, "score": 50 })).await;
    }

    async fn health(&self) -> (u16, Value, Value) {
        let answer = self.plane.api.get("/health").await;
        (answer.status, answer.body["status"].clone(), answer.body["checks"]["webhook_queue"].clone())
    }

    async fn set_status(&self, status: &str) {
        let (webhook, _) = self.deliveries.split_once("/deliveries").unwrap();
        let key = SteppedPlane::env(self.folder.path(), "SERVICE_KEY");
        let changed = self.plane.api.send_as(&key, "PATCH", webhook, json!({ "status": status })).await.expect(200);
        assert_eq!(changed["status"], status);
    }

    async fn until_pending(&self, count: usize) {
        let key = SteppedPlane::env(self.folder.path(), "SERVICE_KEY");
        let all = async || {
            let page = self.plane.api.get_as(&key, &self.deliveries).await.expect(200);
            (page["pagination"]["total"] == count).then_some(())
        };
        eventually("all are on their way", all, String::new).await;
    }

    async fn until(&self, status: &str, queue: &str) {
        let expected = (200, json!(status), json!(queue));
        let same = async || (self.health().await == expected).then_some(());
        eventually(&format!("it is {status}, with the queue {queue}"), same, String::new).await;
    }
}

#[tokio::test]
async fn events_that_wait_although_their_receiver_takes_what_it_gets_are_a_backlog() {
    let stage = Stage::set().await;
    stage.until("healthy", "up").await;
    for _ in 0..8 {
        stage.event().await;
    }
    // The first has not been answered yet.
    stage.until_pending(8).await;
    stage.until("healthy", "up").await;
    stage.clock.advance(Duration::from_mins(6));
    stage.until("degraded", "degraded").await;
    stage.receiver.be(Reply::Status(200));
    stage.until("healthy", "up").await;
}

#[tokio::test]
async fn a_receiver_that_fails_is_not_our_illness() {
    let stage = Stage::set().await;
    stage.receiver.be(Reply::Status(500));
    for _ in 0..8 {
        stage.event().await;
    }
    stage.clock.advance(Duration::from_mins(6));
    // Longer than it takes to look.
    for _ in 0..12 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(stage.health().await, (200, json!("healthy"), json!("up")));
    }
}

#[tokio::test]
async fn the_time_of_a_pause_is_no_backlog() {
    let stage = Stage::set().await;
    stage.set_status("paused").await;
    for _ in 0..8 {
        stage.event().await;
    }
    stage.until_pending(8).await;
    stage.clock.advance(Duration::from_hours(1));
    stage.set_status("active").await;
    for _ in 0..12 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(stage.health().await, (200, json!("healthy"), json!("up")));
    }
    // But what waits from then on is.
    stage.clock.advance(Duration::from_mins(6));
    stage.until("degraded", "degraded").await;
}

#[tokio::test]
async fn a_courier_that_cannot_take_what_is_due_is_down() {
    let stage = Stage::set().await;
    stage.receiver.be(Reply::Status(500));
    stage.event().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    sqlx::any::install_default_drivers();
    let file = || format!("sqlite://{}", stage.folder.path().join("countersign.db").display());
    let url = engines::database_of(stage.folder.path()).await.unwrap_or_else(file);
    let mut other = AnyConnection::connect(&url).await.unwrap();
    // Whoever holds the one writer of SQLite, or the whole table.
    let [begin, lock] = if engines::are_of_a_fleet() {
        ["BEGIN", "LOCK TABLE webhook_deliveries IN EXCLUSIVE MODE"]
    } else {
        ["BEGIN IMMEDIATE", "SELECT 1"]
    };
    other.execute(begin).await.unwrap();
    other.execute(lock).await.unwrap();
    // The next try is due, and cannot be taken.
    stage.clock.advance(Duration::from_secs(10));
    tokio::time::sleep(Duration::from_secs(2)).await;
    stage.clock.advance(Duration::from_secs(20));
    // 200, because agents still get answers.
    stage.until("degraded", "down").await;
    other.execute("ROLLBACK").await.unwrap();
    stage.until("healthy", "up").await;
}
