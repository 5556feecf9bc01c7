//! Tests of `webhook_queue` in `/health`, which is up, degraded with a backlog, or down.

use countersign_tests::{Agent, ControlPlane, Database, ManualClock, Receiver, Reply, Target, engines, eventually};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};

struct Fixture {
    clock: Arc<ManualClock>,
    control: ControlPlane,
    receiver: Receiver,
    target: Target,
    agent: Agent,
}

impl Fixture {
    async fn new() -> Self {
        let clock = ManualClock::new();
        let receiver = Receiver::start(Reply::Pending).await;
        let control = ControlPlane::start_with_clock(&clock, &[]).await;
        let agent = Agent::register(&control, "Agent").await;
        let target = Target::create(&control, &receiver.url).await;
        Self { clock, control, receiver, target, agent }
    }

    async fn emit_events(&self, count: usize) {
        for _ in 0..count {
            self.control.rate(self.control.key(), &self.agent.id, 50).await;
        }
    }

    async fn health(&self) -> (u16, Value, Value) {
        let response = self.control.api.get("/health").await;
        (response.status, response.body["status"].clone(), response.body["checks"]["webhook_queue"].clone())
    }

    /// Reads the health for longer than the interval of the health check.
    async fn assert_healthy(&self) {
        for _ in 0..12 {
            tokio::time::sleep(Duration::from_millis(500)).await;
            assert_eq!(self.health().await, (200, json!("healthy"), json!("up")));
        }
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
    fixture.emit_events(8).await;
    // The receiver has not responded to the first request yet.
    fixture.target.wait_until_count("pending", 8).await;
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
    fixture.emit_events(8).await;
    fixture.clock.advance(Duration::from_mins(6));
    fixture.assert_healthy().await;
}

#[tokio::test]
async fn paused_time_is_not_reported_as_backlog() {
    let fixture = Fixture::new().await;
    fixture.target.pause().await;
    fixture.emit_events(8).await;
    fixture.target.wait_until_count("pending", 8).await;
    fixture.clock.advance(Duration::from_hours(1));
    fixture.target.resume().await;
    fixture.assert_healthy().await;
    // Only the time after the end of a pause counts towards the age of the backlog.
    fixture.clock.advance(Duration::from_mins(6));
    fixture.wait_for_health("degraded", "degraded").await;
}

#[tokio::test]
async fn dispatcher_that_cannot_read_its_queue_is_reported_down() {
    let fixture = Fixture::new().await;
    fixture.receiver.set_reply(Reply::Status(500));
    fixture.emit_events(1).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut blocker = Database::connect_to_write(&fixture.control).await;
    // The test holds the only write transaction of SQLite, or locks the whole table in PostgreSQL.
    let [begin, lock] = if engines::use_postgres_and_redis() {
        ["BEGIN", "LOCK TABLE webhook_deliveries IN EXCLUSIVE MODE"]
    } else {
        ["BEGIN IMMEDIATE", "SELECT 1"]
    };
    blocker.execute(begin).await;
    blocker.execute(lock).await;
    // The next delivery attempt is due, but Countersign's webhook dispatcher cannot read the delivery from the database.
    fixture.clock.advance(Duration::from_secs(10));
    tokio::time::sleep(Duration::from_secs(2)).await;
    fixture.clock.advance(Duration::from_secs(20));
    // The status code is 200, because the API still works.
    fixture.wait_for_health("degraded", "down").await;
    blocker.execute("ROLLBACK").await;
    fixture.wait_for_health("healthy", "up").await;
}
