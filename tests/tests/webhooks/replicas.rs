//! Tests that two control planes with one PostgreSQL share deliveries and deliver each event once, even if one of them is killed.

use countersign_tests::{Agent, ControlPlane, Postgres, Receiver, Target, eventually};
use serde_json::json;

async fn replica(database: &str) -> ControlPlane {
    ControlPlane::start_replica(database, &["webhooks.attempt_seconds=5"]).await
}

/// Assigns a role repeatedly with a later expiry, so that each assignment emits an event.
async fn emit_events(replicas: &[&ControlPlane], agent: &str, role: &str, count: usize) {
    let path = replicas[0].path(&format!("/agents/{agent}/roles"));
    let assign = async |number: usize| {
        let end = format!("2090-01-01T{:02}:{:02}:{:02}Z", number / 3600, number / 60 % 60, number % 60);
        let body = json!({ "roleId": role, "expiresAt": end });
        replicas[number % replicas.len()].api.send_as(replicas[0].key(), "POST", &path, body).await.expect(200);
    };
    for number in 0..count {
        assign(number).await;
    }
}

#[tokio::test]
async fn replicas_share_the_queue_and_take_over_after_a_crash() {
    let postgres = Postgres::start().await;
    let database = postgres.create_database().await;
    let (first, mut second) = (replica(&database).await, replica(&database).await);
    let receiver = Receiver::start_ok().await;
    let target = Target::create_for(&first, &receiver.url, &["agent.role_assigned"]).await;
    let role = first.create_role("reader", &[]).await;
    let agent = Agent::register(&first, "Agent").await.id;

    emit_events(&[&first, &second], &agent, &role, 300).await;
    let delivered = async || (receiver.events() == 300 && target.count_deliveries("pending").await == 0).then_some(());
    eventually("all events are delivered", delivered, || first.log()).await;
    assert_eq!(receiver.count(), 300, "both replicas together deliver each event once");

    // Events of the killed replica are delivered by the other replica when the leases of the deliveries expire, within a minute.
    emit_events(&[&first, &second], &agent, &role, 50).await;
    second.kill();
    emit_events(&[&first], &agent, &role, 50).await;
    target.send_test_event().await;
    let delivered = async || (receiver.events() == 401 && target.count_deliveries("pending").await == 0).then_some(());
    let _timeout = tokio::time::timeout(std::time::Duration::from_secs(90), async {
        while delivered().await.is_none() {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    })
    .await;
    assert_eq!((receiver.events(), target.count_deliveries("pending").await), (401, 0), "{}", first.log());
}
