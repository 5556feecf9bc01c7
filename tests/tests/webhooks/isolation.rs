//! Tests that targets do not delay each other, and that a changed URL resets the state of a target.

use countersign_tests::{ControlPlane, EventSource, Receiver, Reply, Target, Tenant, target::start_with_retries};
use serde_json::json;
use std::time::Duration;

/// With this setting, no attempt times out while a test waits for another target.
const LONG_ATTEMPT_TIMEOUT: &str = "webhooks.attempt_seconds=300";

/// Emits an event that only the fast target gets, and waits for its delivery.
async fn wait_for_delivery(fast: &Receiver, source: &EventSource<'_>) {
    let before = fast.count();
    source.control.rate(source.control.key(), &source.agent.id, 50).await;
    fast.wait_for_requests(before + 1).await;
}

#[tokio::test]
async fn slow_receivers_do_not_delay_other_targets() {
    // With this setting, at most 16 attempts run at the same time for one owner, and 4 for one target.
    let control = ControlPlane::start_with(&["webhooks.concurrency=64", LONG_ATTEMPT_TIMEOUT]).await;
    let mut slow_receivers = Vec::new();
    for _ in 0..3 {
        let receiver = Receiver::start(Reply::Delayed(Duration::from_secs(1), Box::new(Reply::Status(200)))).await;
        let target = Target::create_for(&control, &receiver.url, &["agent.role_assigned", "agent.role_revoked"]).await;
        target.pause().await;
        slow_receivers.push((receiver, target));
    }
    let fast_receiver = Receiver::start_ok().await;
    Target::create_for(&control, &fast_receiver.url, &["trust.feedback_received"]).await;
    let source = EventSource::new(&control).await;
    source.cause_events(24).await;
    for (_, target) in &slow_receivers {
        target.resume().await;
    }
    // After its first success, a target gets several requests concurrently.
    for (receiver, _) in &slow_receivers {
        receiver.wait_for_requests(2).await;
    }
    for (receiver, _) in &slow_receivers {
        receiver.set_reply(Reply::Never);
    }
    wait_for_delivery(&fast_receiver, &source).await;
    assert!(
        slow_receivers.iter().all(|(receiver, _)| receiver.disconnects().is_empty()),
        "no hanging attempt has ended"
    );
}

#[tokio::test]
async fn dead_targets_of_one_owner_do_not_delay_events_of_another() {
    let control = ControlPlane::start_with(&["webhooks.concurrency=8", LONG_ATTEMPT_TIMEOUT]).await;
    let (hanging, working) = (Receiver::start(Reply::Never).await, Receiver::start_ok().await);
    let source = EventSource::new(&control).await;
    for _ in 0..3 {
        let alice = Tenant::new(&control, "alice").await;
        for _ in 0..5 {
            alice.create_target(&hanging.url, &["*"]).await;
        }
        control.rate(&alice.key, &source.agent.id, 50).await;
    }
    Target::create_for(&control, &working.url, &["trust.feedback_received"]).await;
    // Without limits per owner, the targets of the services of one person would get all eight attempts of a replica.
    hanging.wait_for_requests(2).await;
    wait_for_delivery(&working, &source).await;
    let attempts = hanging.count();
    assert!(attempts <= 2 * control.urls().len(), "{attempts} attempts are more than a quarter of all");
    assert_eq!(hanging.open_connections(), attempts, "no attempt has ended");
}

#[tokio::test]
async fn test_events_to_an_unresponsive_target_do_not_delay_events() {
    let control = ControlPlane::start_with(&["webhooks.concurrency=16", LONG_ATTEMPT_TIMEOUT]).await;
    let (unresponsive, fast) = (Receiver::start(Reply::Never).await, Receiver::start_ok().await);
    let unresponsive_target = Target::create_for(&control, &unresponsive.url, &["trust.feedback_received"]).await;
    unresponsive_target.pause().await;
    Target::create_for(&control, &fast.url, &["trust.feedback_received"]).await;
    for _ in 0..12 {
        unresponsive_target.send_test_event().await;
    }
    unresponsive.wait_for_requests(1).await;
    wait_for_delivery(&fast, &EventSource::new(&control).await).await;
    let attempts = unresponsive.count();
    assert!(attempts <= control.urls().len(), "{attempts} attempts are more than one at a time of each replica");
    assert_eq!(unresponsive.open_connections(), attempts);
}

#[tokio::test]
async fn changed_url_resets_the_failures_of_a_target() {
    let control = start_with_retries(&[1, 1], &[]).await;
    let (old_receiver, new_receiver) = (
        Receiver::start(Reply::Delayed(Duration::from_secs(4), Box::new(Reply::Status(410)))).await,
        Receiver::start_ok().await,
    );
    let target = Target::create(&control, &old_receiver.url).await;
    let source = EventSource::new(&control).await;
    source.assign().await;
    let event = old_receiver.wait_for_requests(1).await.remove(0).id().to_owned();
    target.change(json!({ "url": new_receiver.url })).await;
    target.wait_for_delivery_status(&event, "dead").await;
    let current = target.read().await;
    assert_eq!((&current["status"], &current["failingSince"]), (&json!("active"), &json!(null)));
    source.revoke().await;
    new_receiver.wait_for_requests(1).await;
}

#[tokio::test]
async fn changed_url_discards_the_retry_after_delay() {
    // Start only one replica: another one would learn of the delay only by an attempt of its own.
    let control = ControlPlane::start_one_with(&["webhooks.retry_seconds=1,1,1,1"]).await;
    let (old_receiver, new_receiver) =
        (Receiver::start(Reply::retry_after(503, "3600")).await, Receiver::start_ok().await);
    let target = Target::create(&control, &old_receiver.url).await;
    let source = EventSource::new(&control).await;
    source.assign().await;
    let event = old_receiver.wait_for_requests(1).await.remove(0).id().to_owned();
    target.wait_for_attempts(&event, 1).await;
    source.revoke().await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(old_receiver.count(), 1, "nothing is sent before the delay is over");
    target.change(json!({ "url": new_receiver.url })).await;
    assert_eq!(new_receiver.wait_for_requests(1).await[0].json()["event"], "agent.role_revoked");
}

#[tokio::test]
async fn login_for_an_unknown_service_emits_no_event() {
    let control = ControlPlane::start().await;
    let receiver = Receiver::start_ok().await;
    Target::create_for_deployment(&control, &receiver.url).await;
    let source = EventSource::new(&control).await;
    for number in 0..20 {
        let challenge = source.challenge(None).await;
        let service = format!("svc_{number:026}");
        let signature = source.agent.key.sign("another nonce");
        let body = json!({ "challengeId": challenge["challengeId"], "signature": signature, "serviceId": service });
        let response = control.api.post("/auth/authenticate", body).await;
        assert_eq!(response.code(), (404, "SERVICE_NOT_FOUND"));
    }
    source.fail_login(None).await;
    let delivered = receiver.wait_for_requests(1).await;
    assert_eq!((delivered.len(), &delivered[0].data()["serviceId"]), (1, &json!(null)));
}

#[tokio::test]
async fn replay_accepts_only_finished_deliveries() {
    let control = ControlPlane::start().await;
    let (target, _receiver) = Target::with_receiver(&control, Reply::Status(200)).await;
    let path = control.path(&format!("/webhooks/{}/replay", target.id));
    let body = json!({ "since": "2026-01-01T00:00:00Z", "status": "pending" });
    let response = control.api.send_as(control.key(), "POST", &path, body).await;
    assert_eq!(response.error(), (400, "VALIDATION_ERROR", ""));
    assert_eq!(response.text("/error/details/fields/status"), "must be `delivered` or `dead`");
}
