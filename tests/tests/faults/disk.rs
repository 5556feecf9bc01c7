//! A disk that fails to make writes durable.

use super::ledger::{Target, assert_nothing_is_lost_or_doubled};
use countersign_tests::{Agent, ControlPlane, FailingCalls, eventually};
use serde_json::json;
use std::time::Duration;

/// `fsync` and `fdatasync`.
const SYNC_CALLS: &str = "posix/io/sync/*";

#[tokio::test(flavor = "multi_thread")]
async fn writes_that_cannot_be_made_durable_are_refused_until_the_disk_works_again() {
    let failing = FailingCalls::default();
    let control = ControlPlane::start_in(&failing.environment(), &[]).await;
    let agent = Agent::register(&control, "agent").await;
    let token = agent.token().await;
    let role = async |name: &str| {
        let path = control.path("/roles");
        let body = json!({ "name": name, "permissions": [] });
        control.api.send_as(control.key(), "POST", &path, body).await
    };
    failing.enable(control.process_id(), SYNC_CALLS).await;
    let refused = role("refused").await;
    assert_eq!(refused.error().0, 503, "{}", refused.body);
    assert_eq!(control.verify(&token).await.status, 200, "reads need no durable writes");
    let health = control.api.get("/health").await;
    assert_eq!((health.status, health.text("/status")), (200, "degraded"), "{}", health.body);
    failing.disable(control.process_id(), SYNC_CALLS).await;
    let works = async || (role("works").await.status == 201).then_some(());
    eventually("writes succeed again", works, || control.log()).await;
    let names = control.api.get_as(control.key(), &control.path("/roles")).await.expect(200);
    assert!(!names.to_string().contains("refused"), "{names}");
}

#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_writes_survive_failures_of_the_disk_and_kills() {
    let failing = FailingCalls::default();
    let mut control = ControlPlane::start_in(&failing.environment(), &[]).await;
    let target = Target::of(&control);
    let faults = async {
        for _ in 0..5 {
            tokio::time::sleep(Duration::from_millis(200)).await;
            failing.enable(control.process_id(), SYNC_CALLS).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
            control.kill_replica(0).await;
            failing.enable(control.process_id(), SYNC_CALLS).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
            failing.disable(control.process_id(), SYNC_CALLS).await;
        }
    };
    assert_nothing_is_lost_or_doubled(target, faults).await;
}
