//! Tests the fan-out of events to targets: with an event of a later version, with many targets, and with a backlog at shutdown.
//! Also tests the replay of more deliveries than one transaction contains.

use countersign_tests::{
    ControlPlane, Database, EventSource, Receiver, Reply, Target, bulk::numbers, control_plane::text, http::texts,
};
use serde_json::json;

/// The end of an id, different for each number.
const DIGITS: &str = "substr(CAST(10000000000000000 + n AS TEXT), 2)";

/// Inserts events into the outbox that are copies of the only event in the database, while the control plane is stopped.
async fn copy_into_outbox(database: &mut Database, kind: &str, copies: u32) {
    let numbers = numbers(1, copies.into());
    // The first 14 characters of an id are its prefix and time.
    let insert = format!(
        "{numbers} INSERT INTO webhook_outbox (id, kind, body, occurred_at, service_id) \
         SELECT substr(e.id, 1, 14) || {DIGITS}, '{kind}', e.body, e.occurred_at, t.service_id \
         FROM webhook_events e, webhook_targets t, numbers"
    );
    assert_eq!(database.execute(&insert).await, u64::from(copies));
}

/// A stopped control plane that has delivered one event to its only webhook, and the receiver of the webhook.
async fn stopped_after_a_delivery() -> (ControlPlane, Receiver) {
    let mut control = ControlPlane::start_process().await;
    let receiver = Receiver::start_ok().await;
    Target::create_for(&control, &receiver.url, &["agent.role_assigned"]).await;
    EventSource::new(&control).await.assign().await;
    receiver.wait_for_requests(1).await;
    control.terminate().await;
    (control, receiver)
}

/// During an upgrade, control planes of two versions share the outbox.
#[tokio::test(flavor = "multi_thread")]
async fn event_of_a_later_version_is_delivered_and_listed() {
    let (mut control, receiver) = stopped_after_a_delivery().await;
    let mut database = Database::connect_to_write(&control).await;
    database.execute("UPDATE webhook_targets SET events = ''").await;
    copy_into_outbox(&mut database, "agent.renamed", 2).await;
    control.restart().await;
    receiver.wait_for_requests(3).await;
    let webhooks = control.get("/webhooks").await.expect(200);
    let path = format!("/webhooks/{}/deliveries", text(&webhooks["data"][0]["webhookId"]));
    let deliveries = control.get(&path).await.expect(200);
    let kinds = texts(&deliveries, "event");
    assert_eq!(kinds.iter().filter(|kind| **kind == "agent.renamed").count(), 2, "{kinds:?}");
}

/// 2500 other targets have pending deliveries and come before the tested one in the order of ids: more than the dispatcher reads in
/// one page.
#[tokio::test(flavor = "multi_thread")]
async fn target_behind_many_others_gets_its_events() {
    const OTHERS: u32 = 2500;
    let (mut control, receiver) = stopped_after_a_delivery().await;
    let mut database = Database::connect_to_write(&control).await;
    let targets = format!(
        "{} INSERT INTO webhook_targets (id, service_id, url, events, description, secret, created_at, updated_at, \
         active_since, paused_at) SELECT substr(id, 1, length(id) - 26) || '0000000000' || {DIGITS}, service_id, url, \
         events, description, secret, created_at, updated_at, active_since, updated_at FROM webhook_targets, numbers",
        numbers(1, i64::from(OTHERS))
    );
    let deliveries = "INSERT INTO webhook_deliveries (target_id, event_id, due_at, attempts) \
                      SELECT t.id, e.id, 1, 0 FROM webhook_targets t, webhook_events e WHERE t.paused_at IS NOT NULL";
    for sql in [targets.as_str(), deliveries] {
        assert_eq!(database.execute(sql).await, u64::from(OTHERS), "{sql}");
    }
    control.restart().await;
    EventSource::with_role(&control, "writer").await.assign().await;
    receiver.wait_for_requests(2).await;
    let health = control.api.get("/health").await.expect(200);
    assert_eq!(health["checks"]["webhook_queue"], "up", "{health}");
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_does_not_wait_for_the_outbox() {
    let mut control = ControlPlane::start_process().await;
    let (target, receiver) = Target::with_receiver(&control, Reply::Status(200)).await;
    EventSource::new(&control).await.assign().await;
    receiver.wait_for_requests(1).await;
    target.pause().await;
    control.terminate().await;
    let mut database = Database::connect_to_write(&control).await;
    copy_into_outbox(&mut database, "agent.role_assigned", 100_000).await;

    control.restart().await;
    assert!(control.terminate().await.success());
    let left = database.text_column("SELECT id FROM webhook_outbox LIMIT 1").await;
    assert_eq!(left.len(), 1, "the next start continues");
}

#[tokio::test(flavor = "multi_thread")]
async fn replay_continues_past_its_first_transaction() {
    let mut control = ControlPlane::start_process().await;
    let (target, receiver) = Target::with_receiver(&control, Reply::Status(200)).await;
    EventSource::new(&control).await.assign().await;
    receiver.wait_for_requests(1).await;
    target.wait_until_count("delivered", 1).await;
    target.pause().await;
    control.terminate().await;
    let mut database = Database::connect_to_write(&control).await;
    // Of each three deliveries, one is delivered, one is dead, and one is a test, which is not replayed.
    let numbers = numbers(1, 4500);
    let events = format!(
        "{numbers} INSERT INTO webhook_events SELECT substr(id, 1, 14) || {DIGITS}, kind, body, occurred_at \
         FROM webhook_events, numbers"
    );
    let deliveries = format!(
        "{numbers} INSERT INTO webhook_deliveries (target_id, event_id, attempts, test_requested_at, delivered_at, dead_since) \
         SELECT target_id, substr(event_id, 1, 14) || {DIGITS}, 1, CASE WHEN n % 3 = 0 THEN 1 END, \
         CASE WHEN n % 3 < 2 THEN 1 END, CASE WHEN n % 3 = 2 THEN 1 END FROM webhook_deliveries, numbers"
    );
    for sql in [events, deliveries] {
        assert_eq!(database.execute(&sql).await, 4500, "{sql}");
    }
    control.restart().await;
    let replay = async |status: Option<&str>| {
        target.replay_since(json!({ "since": "2020-01-01T00:00:00Z", "status": status })).await
    };
    assert_eq!(target.count_deliveries("dead").await, 1500);
    assert_eq!(replay(Some("dead")).await, 1500);
    assert_eq!((target.count_deliveries("dead").await, target.count_deliveries("pending").await), (0, 1500));
    database.execute("UPDATE webhook_deliveries SET due_at = NULL, dead_since = 1 WHERE due_at IS NOT NULL").await;
    assert_eq!(replay(None).await, 3001);
    assert_eq!(replay(None).await, 0);
    assert_eq!(target.count_deliveries("delivered").await, 1500, "the tests");
}
