//! Tests of delivery attempts: retries, timeouts, redirects and TLS. Dead receivers do not delay other targets.

use countersign_tests::{
    ControlPlane, EventSource, Receiver, RefusingPort, Reply, Target, eventually, target::start_with_retries,
};
use serde_json::{Value, json};
use std::time::Duration;

/// The smallest factor by which jitter multiplies a delay.
const MIN_JITTER_FACTOR: f64 = 0.8;

fn seconds(from: Duration, to: Duration) -> f64 {
    to.as_secs_f64() - from.as_secs_f64()
}

#[tokio::test]
async fn failed_delivery_is_retried_on_schedule_and_then_only_by_replay() {
    let control = start_with_retries(&[5, 2], &[]).await;
    let (target, receiver) = Target::with_receiver(
        &control,
        Reply::Full(500, vec![("x-reason", "none".to_owned())], "out of order".to_owned()),
    )
    .await;
    let source = EventSource::new(&control).await;
    source.assign().await;
    let first = receiver.wait_for_requests(1).await.remove(0);
    let event = first.id().to_owned();
    let delivery = target.wait_for_attempts(&event, 1).await;
    assert_eq!((&delivery["status"], &delivery["failure"]), (&json!("pending"), &json!("status")));
    assert_eq!((&delivery["responseStatus"], &delivery["responseBody"]), (&json!(500), &json!("out of order")));
    assert!(delivery["nextAttemptAt"].is_string() && delivery["lastAttemptAt"].is_string(), "{delivery}");
    assert_eq!(delivery["payload"], first.json());
    let dead_delivery = target.wait_for_delivery_status(&event, "dead").await;
    assert_eq!((&dead_delivery["attempts"], &dead_delivery["nextAttemptAt"]), (&json!(3), &Value::Null));
    let attempts = receiver.received();
    assert_eq!(attempts.len(), 3);
    for (pair, delay) in attempts.windows(2).zip([5.0, 2.0]) {
        let elapsed = seconds(pair[0].at, pair[1].at);
        assert!(elapsed >= delay * MIN_JITTER_FACTOR, "retried after {elapsed} s instead of {delay} s");
    }
    for request in &attempts {
        assert_eq!(
            (request.id(), &request.body),
            (event.as_str(), &first.body),
            "every attempt has the same id and body"
        );
    }
    assert_eq!(target.read().await["status"], "active");
    assert!(target.read().await["failingSince"].is_string());

    receiver.set_reply(Reply::Status(204));
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(receiver.count(), 3, "a dead delivery is not retried");
    target.replay(&event).await;
    let finished = target.wait_for_delivery_status(&event, "delivered").await;
    assert_eq!(
        (&finished["attempts"], &finished["responseStatus"], &finished["failure"]),
        (&json!(1), &json!(204), &Value::Null)
    );
    assert_eq!(receiver.count(), 4);
    target.wait_until("the failure is cleared", |target| target["failingSince"].is_null()).await;
}

#[tokio::test]
async fn failed_event_is_retried_without_delaying_others() {
    let control = start_with_retries(&[1, 1, 1, 1], &[]).await;
    let receiver = Receiver::start_with(|received, earlier| {
        let assigned = received.json()["event"] == "agent.role_assigned";
        if assigned && earlier < 2 { Reply::Status(503) } else { Reply::Status(200) }
    });
    let receiver = receiver.await;
    let target = Target::create(&control, &receiver.url).await;
    let source = EventSource::new(&control).await;
    source.cause_events(2).await;
    receiver.wait_for_requests(4).await;
    let assigned = receiver.of_kind("agent.role_assigned");
    assert_eq!((assigned.len(), receiver.of_kind("agent.role_revoked").len()), (3, 1));
    assert_eq!(target.wait_for_delivery_status(assigned[0].id(), "delivered").await["attempts"], 3);
}

#[tokio::test]
async fn retry_after_of_the_receiver_is_respected() {
    let control = start_with_retries(&[1, 1, 1], &[]).await;
    for status in [429, 503] {
        let receiver = Receiver::start_with(move |_, earlier| match earlier {
            0 => Reply::retry_after(status, "4"),
            _ => Reply::Status(200),
        });
        let receiver = receiver.await;
        let target = Target::create(&control, &receiver.url).await;
        let source = EventSource::with_role(&control, &format!("role {status}")).await;
        source.assign().await;
        let first = receiver.wait_for_requests(1).await.remove(0);
        target.wait_for_attempts(first.id(), 1).await;
        // Later events for the target also wait until the delay of `Retry-After` is over. Another replica learns of the delay
        // by an attempt of its own.
        source.revoke().await;
        for request in &receiver.wait_for_requests(3).await[1..] {
            let elapsed = seconds(first.at, request.at);
            let is_retry = request.id() == first.id();
            assert!(elapsed >= 3.9 || (!is_retry && control.urls().len() > 1), "{status}: sent after {elapsed} s");
        }
        target.wait_for_delivery_status(first.id(), "delivered").await;
        target.delete().await;
    }
}

#[tokio::test]
async fn target_that_responds_410_is_disabled_and_its_events_stay_queued() {
    let control = start_with_retries(&[1, 1, 1], &[]).await;
    let (target, receiver) = Target::with_receiver(&control, Reply::Status(410)).await;
    let source = EventSource::new(&control).await;
    source.assign().await;
    let disabled = target.wait_until("the target is disabled", |target| target["status"] == "disabled").await;
    assert_eq!(disabled["disabledReason"], "gone");
    let attempts = receiver.count();
    source.revoke().await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!((receiver.count(), attempts), (1, 1), "a disabled target receives nothing");
    receiver.set_reply(Reply::Status(200));
    target.resume().await;
    let resumed = target.read().await;
    assert_eq!((&resumed["status"], &resumed["disabledReason"]), (&json!("active"), &Value::Null));
    receiver.wait_for_requests(2).await;
    let revoked = async || (receiver.of_kind("agent.role_revoked").len() == 1).then_some(());
    eventually("the queued events are delivered", revoked, String::new).await;
}

/// Slow and broken receivers: a name, the reply, and the recorded failure, which is empty if it may vary.
fn slow_receivers() -> [(&'static str, Reply, &'static str); 5] {
    [
        ("no response", Reply::Never, "timeout"),
        ("slow headers", Reply::SlowHeaders, "timeout"),
        ("slow body", Reply::SlowBody, ""),
        ("closed connection", Reply::Close, "connection"),
        ("truncated body", Reply::Truncated, ""),
    ]
}

#[tokio::test]
async fn attempts_end_within_the_timeout() {
    let control = start_with_retries(&[600], &["webhooks.attempt_seconds=2"]).await;
    let source = EventSource::new(&control).await;
    let mut targets = Vec::new();
    for (name, reply, failure) in slow_receivers() {
        let (target, receiver) = Target::with_receiver(&control, reply).await;
        targets.push((name, failure, receiver, target));
    }
    source.assign().await;
    for (name, failure, receiver, target) in targets {
        let event = receiver.wait_for_requests(1).await.remove(0);
        let attempted = target.wait_for_attempts(event.id(), 1).await;
        if failure.is_empty() {
            assert!(attempted["status"] == "delivered" || attempted["failure"].is_string(), "{name}: {attempted}");
        } else {
            assert_eq!((&attempted["failure"], &attempted["status"]), (&json!(failure), &json!("pending")), "{name}");
        }
        if ["no response", "slow headers", "slow body"].contains(&name) {
            let disconnected = async || receiver.disconnects().first().copied();
            eventually(name, disconnected, String::new).await;
        }
        assert_eq!(receiver.count(), 1, "{name}");
        target.delete().await;
    }
}

#[tokio::test]
async fn only_the_beginning_of_a_huge_response_is_read() {
    let control = start_with_retries(&[600], &["webhooks.attempt_seconds=5"]).await;
    let source = EventSource::new(&control).await;
    source.assign().await;
    for status in [200, 500] {
        let (target, receiver) = Target::with_receiver(&control, Reply::Endless(status)).await;
        let event = target.send_test_event().await;
        let attempted = target.wait_for_attempts(&event, 1).await;
        assert_eq!(attempted["responseStatus"], status, "{attempted}");
        assert_eq!(attempted["status"], if status == 200 { "delivered" } else { "dead" });
        let excerpt = attempted["responseBody"].as_str().unwrap_or_default();
        assert!(excerpt.len() <= 1024 && excerpt.bytes().all(|byte| byte == b'x'), "{}", excerpt.len());
        eventually("the dispatcher closes the connection", async || receiver.disconnects().pop(), String::new).await;
        // The socket buffers may contain more bytes of the endless body than the server has read.
        assert!(receiver.endless_bytes_sent() < 16 * 1024 * 1024, "{} bytes were sent", receiver.endless_bytes_sent());
        target.delete().await;
    }
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let control = start_with_retries(&[1], &[]).await;
    let redirect_target = Receiver::start_ok().await;
    for status in [301, 302, 303, 307, 308] {
        let receiver = Receiver::start(Reply::redirect(status, &redirect_target.url)).await;
        let target = Target::create_for(&control, &receiver.url, &["agent.authenticated"]).await;
        let event = target.send_test_event().await;
        let attempted = target.wait_for_attempts(&event, 1).await;
        assert_eq!((&attempted["failure"], &attempted["responseStatus"]), (&json!("redirect"), &json!(status)));
        assert_eq!((&attempted["status"], receiver.count()), (&json!("dead"), 1), "a test event has one attempt");
        target.delete().await;
    }
    assert_eq!((redirect_target.count(), redirect_target.connections()), (0, 0));
}

/// If an attempt kept a database connection or a lock while it waits for the receiver, requests would wait, too.
#[tokio::test(flavor = "multi_thread")]
async fn dead_receivers_delay_neither_requests_nor_other_targets() {
    // With an attempt timeout of 300 s, no attempt to a dead receiver ends during the test.
    let settings = ["webhooks.attempt_seconds=300", "database.max_connections=3"];
    let control = start_with_retries(&[1, 1, 1, 1, 1], &settings).await;
    let (hanging, slow, working) =
        (Receiver::start(Reply::Never).await, Receiver::start(Reply::SlowHeaders).await, Receiver::start_ok().await);
    let refusal = RefusingPort::new();
    for url in [&hanging.url, &slow.url, &refusal.url(), &hanging.url, &slow.url, &hanging.url] {
        Target::create(&control, url).await;
    }
    Target::create(&control, &working.url).await;
    let source = EventSource::new(&control).await;
    for round in 0..20 {
        source.agent.token_for(control.service()).await;
        source.assign().await;
        source.revoke().await;
        working.wait_for_requests(3 * (round + 1)).await;
    }
    for (dead, targets) in [(&hanging, 3), (&slow, 2)] {
        // Each replica makes one attempt at a time to a webhook target that has not responded yet.
        let attempts = dead.count();
        assert!((1..=targets * control.urls().len()).contains(&attempts), "{attempts} attempts");
        assert_eq!(dead.open_connections(), attempts);
        assert!(dead.disconnects().is_empty(), "no attempt to a dead receiver has ended");
    }
}

#[tokio::test]
async fn receiver_certificate_must_be_signed_by_a_configured_authority() {
    let (receiver, authority) = Receiver::start_tls().await;
    let (untrusted, its_authority) = Receiver::start_tls().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("authority.pem");
    std::fs::write(&file, authority).unwrap();
    let control = ControlPlane::start_process_with(&[&format!("webhooks.ca_file={}", file.display())]).await;
    let target = Target::create(&control, &receiver.url).await;
    let event = target.send_test_event().await;
    target.wait_for_delivery_status(&event, "delivered").await;
    assert_eq!(receiver.received()[0].id(), event);
    let target = Target::create(&control, &untrusted.url).await;
    let event = target.send_test_event().await;
    let refused = target.wait_for_delivery_status(&event, "dead").await;
    assert_eq!((&refused["failure"], untrusted.count()), (&json!("tls"), 0));
    // The control plane trusts a changed file without a restart.
    std::fs::write(&file, its_authority).unwrap();
    let loaded = || control.log().matches("certificate authorities for the next attempts").count();
    let is_loaded = async || (loaded() == control.urls().len()).then_some(());
    eventually("the changed file is loaded", is_loaded, || control.log()).await;
    let event = target.send_test_event().await;
    target.wait_for_delivery_status(&event, "delivered").await;
    // Without the setting of trusted authorities, the control plane does not trust the first receiver either.
    let control = ControlPlane::start().await;
    let target = Target::create(&control, &receiver.url).await;
    let event = target.send_test_event().await;
    assert_eq!(target.wait_for_delivery_status(&event, "dead").await["failure"], "tls");
    assert_eq!(receiver.count(), 1);
}
