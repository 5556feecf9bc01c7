//! Tests of behaviour over days, with a manual clock.

use countersign_client::{Api, PrivateKey};
use countersign_tests::{InProcessServer, ManualClock, Receiver, Reply, Target, eventually};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};
use tempfile::TempDir;

const HOUR: Duration = Duration::from_hours(1);
const DAY: Duration = Duration::from_hours(24);

struct Fixture {
    clock: Arc<ManualClock>,
    server: InProcessServer,
    key: String,
    collection: String,
    agent: String,
    // The folder is dropped after the server, which still uses the folder.
    _folder: TempDir,
}

impl Fixture {
    async fn new() -> Self {
        Self::with_settings(&[]).await
    }

    async fn with_settings(settings: &[(&str, String)]) -> Self {
        let (clock, folder) = (ManualClock::new(), tempfile::tempdir().unwrap());
        let server = InProcessServer::start(folder.path(), settings, &clock).await;
        let authority = std::fs::read(folder.path().join("ca.pem")).unwrap();
        let api = Api::new(&server.api.url, Some(&authority)).unwrap();
        let agent = api.register(&PrivateKey::generate(), "owner@example.org", "Agent", None).await.unwrap().agent_id;
        let [key, service] = ["SERVICE_KEY", "SERVICE_ID"].map(|name| InProcessServer::env(folder.path(), name));
        Self { clock, server, key, collection: format!("/services/{service}/webhooks"), agent, _folder: folder }
    }

    async fn create_target(&self, receiver: &Receiver) -> Target {
        Target::create_in(&self.server.api, &self.key, &self.collection, &receiver.url, &["*"]).await
    }

    /// Emits an event by submitting feedback.
    async fn emit_event(&self) {
        let body = json!({ "agentId": self.agent, "score": 50 });
        self.server.api.send_as(&self.key, "POST", "/trust/feedback", body).await.expect(200);
    }
}

#[tokio::test]
async fn old_secret_stops_signing_a_day_after_a_rotation() {
    let fixture = Fixture::new().await;
    let receiver = Receiver::start_ok().await;
    let mut target = fixture.create_target(&receiver).await;
    target.rotate_secret().await;
    fixture.clock.advance(23 * HOUR + Duration::from_secs(3599));
    target.send_test_event().await;
    let request = receiver.wait_for_requests(1).await.remove(0);
    assert_eq!(request.header("webhook-signature").split(' ').count(), 2);
    fixture.clock.advance(Duration::from_secs(1));
    target.send_test_event().await;
    let request = receiver.wait_for_requests(2).await.remove(1);
    assert_eq!(request.header("webhook-signature").split(' ').count(), 1);
}

#[tokio::test]
async fn ten_attempts_take_three_days_and_five_days_of_failure_disable_a_target() {
    let fixture = Fixture::new().await;
    let receiver = Receiver::start(Reply::Status(500)).await;
    let target = fixture.create_target(&receiver).await;
    fixture.emit_event().await;
    let event = receiver.wait_for_requests(1).await.remove(0).id().to_owned();
    // The delays between delivery attempts in the default settings. Jitter adds at most a fifth of a delay.
    let delays = [5_u64, 60, 300, 1800, 7200, 21_600, 43_200, 86_400, 86_400];
    for (attempts, delay) in (1_u64..).zip(delays) {
        let recorded = |delivery: &Value| delivery["attempts"] == attempts;
        target.wait_for_delivery(&event, "the attempt is recorded", recorded).await;
        fixture.clock.advance(Duration::from_secs(delay * 6 / 5 + 1).max(Duration::from_mins(2)));
    }
    let dead_delivery = target.wait_for_delivery_status(&event, "dead").await;
    assert_eq!((&dead_delivery["attempts"], receiver.count()), (&json!(10), 10));
    assert_eq!(target.read().await["status"], "active");

    fixture.clock.advance(2 * DAY);
    fixture.emit_event().await;
    let disabled = target.wait_until("the target is disabled", |target| target["status"] == "disabled").await;
    assert_eq!(disabled["disabledReason"], "failing");
    let attempts = receiver.count();
    fixture.emit_event().await;
    fixture.clock.advance(HOUR);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(receiver.count(), attempts, "a disabled target receives nothing");
    receiver.set_reply(Reply::Status(200));
    target.resume().await;
    let none_pending = async || (target.count_deliveries("pending").await == 0).then_some(());
    eventually("the queued events are delivered", none_pending, String::new).await;
    let resumed = target.read().await;
    assert_eq!((&resumed["status"], &resumed["failingSince"]), (&json!("active"), &Value::Null));
}

#[tokio::test]
async fn failures_six_days_apart_do_not_disable_a_target() {
    let fixture = Fixture::with_settings(&[("webhooks.retry_seconds", "5".to_owned())]).await;
    let receiver = Receiver::start(Reply::Status(500)).await;
    let target = fixture.create_target(&receiver).await;
    fixture.emit_event().await;
    let event = receiver.wait_for_requests(1).await.remove(0).id().to_owned();
    target.wait_for_delivery(&event, "the attempt is recorded", |delivery| delivery["attempts"] == 1).await;
    fixture.clock.advance(Duration::from_secs(10));
    target.wait_for_delivery_status(&event, "dead").await;
    let before = target.read().await["failingSince"].clone();
    fixture.clock.advance(6 * DAY);
    fixture.emit_event().await;
    let restarted = |target: &Value| target["failingSince"] != before;
    assert_eq!(target.wait_until("a new failure is recorded", restarted).await["status"], "active");
}
