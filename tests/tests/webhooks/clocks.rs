//! Tests of behaviour over days, with a manual clock.

use countersign_tests::{Agent, ControlPlane, ManualClock, Reply, Target};
use serde_json::{Value, json};
use std::time::Duration;

const HOUR: Duration = Duration::from_hours(1);
const DAY: Duration = Duration::from_hours(24);

/// Emits an event by submitting feedback.
async fn emit_event(control: &ControlPlane) {
    control.rate(control.key(), &Agent::register(control, "Agent").await.id, 50).await;
}

#[tokio::test]
async fn ten_attempts_take_three_days_and_five_days_of_failure_disable_a_target() {
    let clock = ManualClock::new();
    let control = ControlPlane::start_with_clock(&clock, &[]).await;
    let (target, receiver) = Target::with_receiver(&control, Reply::Status(500)).await;
    emit_event(&control).await;
    let event = receiver.wait_for_requests(1).await.remove(0).id().to_owned();
    // The delays between delivery attempts in the default settings. Jitter adds at most a fifth of a delay.
    let delays = [5_u64, 60, 300, 1800, 7200, 21_600, 43_200, 86_400, 86_400];
    for (attempts, delay) in (1_u64..).zip(delays) {
        target.wait_for_attempts(&event, attempts).await;
        clock.advance(Duration::from_secs(delay * 6 / 5 + 1).max(Duration::from_mins(2)));
    }
    let dead_delivery = target.wait_for_delivery_status(&event, "dead").await;
    assert_eq!((&dead_delivery["attempts"], receiver.count()), (&json!(10), 10));
    assert_eq!(target.read().await["status"], "active");

    clock.advance(2 * DAY);
    emit_event(&control).await;
    let disabled = target.wait_until("the target is disabled", |target| target["status"] == "disabled").await;
    assert_eq!(disabled["disabledReason"], "failing");
    let attempts = receiver.count();
    emit_event(&control).await;
    clock.advance(HOUR);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(receiver.count(), attempts, "a disabled target receives nothing");
    receiver.set_reply(Reply::Status(200));
    target.resume().await;
    target.wait_until_count("pending", 0).await;
    let resumed = target.read().await;
    assert_eq!((&resumed["status"], &resumed["failingSince"]), (&json!("active"), &Value::Null));
}

#[tokio::test]
async fn failures_six_days_apart_do_not_disable_a_target() {
    let clock = ManualClock::new();
    let control = ControlPlane::start_with_clock(&clock, &["webhooks.retry_seconds=5"]).await;
    let (target, receiver) = Target::with_receiver(&control, Reply::Status(500)).await;
    emit_event(&control).await;
    let event = receiver.wait_for_requests(1).await.remove(0).id().to_owned();
    target.wait_for_attempts(&event, 1).await;
    clock.advance(Duration::from_secs(10));
    target.wait_for_delivery_status(&event, "dead").await;
    let before = target.read().await["failingSince"].clone();
    clock.advance(6 * DAY);
    emit_event(&control).await;
    let restarted = |target: &Value| target["failingSince"] != before;
    assert_eq!(target.wait_until("a new failure is recorded", restarted).await["status"], "active");
}
