//! Tests of signatures with the reference library of Standard Webhooks in Python.

use countersign_process::Clock;
use countersign_tests::{
    ControlPlane, EventSource, ManualClock, Received, Receiver, Reply, StandardWebhooks, Target, control_plane::text,
};
use std::{slice::from_ref, time::Duration};

/// Every request is signed with the secret of its target, and the library refuses altered requests.
#[tokio::test]
async fn requests_are_signed_and_altered_requests_fail_verification() {
    let control = ControlPlane::start().await;
    let (target, receiver) = Target::with_receiver(&control, Reply::Status(200)).await;
    let other_target = Target::create(&control, &receiver.url).await;
    assert!(target.secret.starts_with("whsec_") && target.secret != other_target.secret);
    other_target.delete().await;
    // The body of the request must contain the bytes of this role name unchanged.
    let source = EventSource::with_role(&control, "Größe \"100%\"\\").await;
    source.cause_events(4).await;
    let requests = receiver.wait_for_requests(4).await;
    let mut library = StandardWebhooks::start();
    library.assert_signatures(&target.secret, &requests);
    let signed = &requests[0];
    for (name, forged) in altered_requests(signed) {
        let result = library.verify(&target.secret, &forged);
        assert!(result.contains("No matching signature"), "{name}: {result}");
    }
    let result = library.verify(&other_target.secret, signed);
    assert!(result.contains("No matching signature"), "another secret: {result}");
}

fn altered_requests(signed: &Received) -> Vec<(&'static str, Received)> {
    let body = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut forged = signed.clone();
        change(&mut forged.body);
        forged
    };
    let later = (signed.header("webhook-timestamp").parse::<i64>().unwrap() + 1).to_string();
    let id = signed.id().to_owned();
    let last = if id.ends_with('0') { "1" } else { "0" };
    vec![
        ("an additional space", body(&|body| body.push(b' '))),
        ("a removed byte", body(&|body| body.truncate(body.len() - 1))),
        ("a changed letter", body(&|body| body[2] ^= 1)),
        ("another timestamp", signed.clone().with_header("webhook-timestamp", &later)),
        ("another id", signed.clone().with_header("webhook-id", &format!("{}{last}", &id[..id.len() - 1]))),
    ]
}

#[tokio::test]
async fn both_secrets_are_valid_for_a_day_after_a_rotation() {
    let clock = ManualClock::new();
    let control = ControlPlane::start_with_clock(&clock, &[]).await;
    let receiver = Receiver::start_ok().await;
    let mut target = Target::create_for(&control, &receiver.url, &["agent.role_assigned"]).await;
    let (mut library, old_secret) = (StandardWebhooks::start(), target.secret.clone());
    let send = async |target: &Target| {
        let event = target.send_test_event().await;
        receiver.wait_for_event(&event).await;
        receiver.received().into_iter().find(|request| request.id() == event).unwrap()
    };
    let signatures = |request: &Received| request.header("webhook-signature").split(' ').count();
    assert_eq!(signatures(&send(&target).await), 1);
    let rotated_at = clock.now().seconds();
    let rotated = target.rotate_secret().await;
    assert!(target.secret.starts_with("whsec_") && target.secret != old_secret);
    let expires_at: jiff::Timestamp = text(&rotated["previousSecretExpiresAt"]).parse().unwrap();
    assert_eq!(expires_at.as_second() - rotated_at, 24 * 3600, "{rotated}");
    assert_eq!(target.read().await["previousSecretExpiresAt"], rotated["previousSecretExpiresAt"]);

    let double_signed = send(&target).await;
    assert_eq!(signatures(&double_signed), 2);
    library.assert_signatures(&old_secret, from_ref(&double_signed));
    library.assert_signatures(&target.secret, from_ref(&double_signed));

    // A second rotation drops the first webhook secret, because at most two secrets are valid.
    let second_secret = target.secret.clone();
    target.rotate_secret().await;
    let after_second_rotation = send(&target).await;
    library.assert_signatures(&second_secret, from_ref(&after_second_rotation));
    library.assert_signatures(&target.secret, from_ref(&after_second_rotation));
    assert!(library.verify(&old_secret, &after_second_rotation).contains("No matching signature"));
    clock.advance(Duration::from_secs(24 * 3600 - 1));
    assert_eq!(signatures(&send(&target).await), 2);
    clock.advance(Duration::from_secs(1));
    assert_eq!(signatures(&send(&target).await), 1);
}

#[tokio::test]
async fn secret_is_returned_once_and_stored_encrypted() {
    // The control plane uses SQLite, because the test searches the database files.
    let control = ControlPlane::start_with(&["database.url="]).await;
    let (target, _receiver) = Target::with_receiver(&control, Reply::Status(200)).await;
    assert_eq!(target.read().await["secret"], serde_json::Value::Null);
    let bytes = target.secret.trim_start_matches("whsec_");
    let raw = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, bytes).unwrap();
    assert_eq!(raw.len(), 32);
    let files = ["countersign.db", "countersign.db-wal", "log"];
    let stored = files.map(|name| std::fs::read(control.folder().join(name)).unwrap_or_default()).concat();
    let contains = |needle: &[u8]| stored.windows(needle.len()).any(|window| window == needle);
    assert!(contains(target.id.as_bytes()), "the files contain the target");
    for needle in [bytes.as_bytes(), &raw, hex::encode(&raw).as_bytes()] {
        assert!(!contains(needle), "the files do not contain the secret");
    }
}
