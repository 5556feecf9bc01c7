//! Signatures, verified with the reference library of Standard Webhooks in Python.

use countersign_process::{Clock, SystemClock};
use countersign_tests::{ControlPlane, EventSource, Received, Receiver, StandardWebhooks, Target};

/// Every request is signed with the secret of its target, and the library refuses altered requests.
#[tokio::test]
async fn requests_are_signed_and_altered_requests_fail_verification() {
    let control = ControlPlane::start().await;
    let receiver = Receiver::good().await;
    let target = Target::create(&control, &receiver.url).await;
    let another = Target::create(&control, &receiver.url).await;
    assert!(target.secret.starts_with("whsec_") && target.secret != another.secret);
    another.delete().await;
    // A name that must be delivered unchanged to the byte.
    let source = EventSource::with_role(&control, "Größe \"100%\"\\").await;
    source.events(4).await;
    let all = receiver.until(4).await;
    let mut library = StandardWebhooks::start();
    library.assert_signed(&target.secret, &all);
    let signed = &all[0];
    for (name, forged) in changed(signed) {
        let result = library.verify(&target.secret, &forged);
        assert!(result.contains("No matching signature"), "{name}: {result}");
    }
    let result = library.verify(&another.secret, signed);
    assert!(result.contains("No matching signature"), "another secret: {result}");
}

fn changed(signed: &Received) -> Vec<(&'static str, Received)> {
    let body = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut forged = signed.clone();
        change(&mut forged.body);
        forged
    };
    let later = (signed.header("webhook-timestamp").parse::<i64>().unwrap() + 1).to_string();
    let id = signed.id().to_owned();
    let last = if id.ends_with('0') { "1" } else { "0" };
    vec![
        ("a space more", body(&|body| body.push(b' '))),
        ("a byte less", body(&|body| body.truncate(body.len() - 1))),
        ("another letter", body(&|body| body[2] ^= 1)),
        ("another second", signed.clone().with("webhook-timestamp", &later)),
        ("another id", signed.clone().with("webhook-id", &format!("{}{last}", &id[..id.len() - 1]))),
    ]
}

#[tokio::test]
async fn both_secrets_are_valid_for_a_day_after_a_rotation() {
    let control = ControlPlane::start().await;
    let receiver = Receiver::good().await;
    let mut target = Target::create_for(&control, &receiver.url, &["agent.role_assigned"]).await;
    let (old, started) = (target.secret.clone(), SystemClock.now().seconds());
    target.test().await;
    assert!(!receiver.until(1).await[0].header("webhook-signature").contains(' '));
    let rotated = target.rotate().await;
    assert!(target.secret.starts_with("whsec_") && target.secret != old);
    let until: jiff::Timestamp = rotated["previousSecretExpiresAt"].as_str().unwrap().parse().unwrap();
    assert!((0..=10).contains(&(until.as_second() - started - 24 * 3600)), "{rotated}");
    assert_eq!(target.read().await["previousSecretExpiresAt"], rotated["previousSecretExpiresAt"]);

    target.test().await;
    let both = receiver.until(2).await.remove(1);
    assert_eq!(both.header("webhook-signature").split(' ').count(), 2);
    let mut library = StandardWebhooks::start();
    library.assert_signed(&old, std::slice::from_ref(&both));
    library.assert_signed(&target.secret, std::slice::from_ref(&both));

    // A second rotation drops the first secret: at most two are valid.
    let middle = target.secret.clone();
    target.rotate().await;
    target.test().await;
    let again = receiver.until(3).await.remove(2);
    assert_eq!(again.header("webhook-signature").split(' ').count(), 2);
    library.assert_signed(&middle, std::slice::from_ref(&again));
    library.assert_signed(&target.secret, std::slice::from_ref(&again));
    assert!(library.verify(&old, &again).contains("No matching signature"));
}

#[tokio::test]
async fn secret_is_returned_once_and_stored_encrypted() {
    // SQLite, because the test searches its files.
    let control = ControlPlane::start_with(&["database.url="]).await;
    let receiver = Receiver::good().await;
    let target = Target::create(&control, &receiver.url).await;
    assert_eq!(target.read().await["secret"], serde_json::Value::Null);
    let bytes = target.secret.trim_start_matches("whsec_");
    let raw = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, bytes).unwrap();
    assert_eq!(raw.len(), 32);
    let files = ["countersign.db", "countersign.db-wal", "log"];
    let stored = files.map(|name| std::fs::read(control.folder().join(name)).unwrap_or_default()).concat();
    let contains = |needle: &[u8]| stored.windows(needle.len()).any(|window| window == needle);
    assert!(contains(target.id.as_bytes()), "the target is stored there");
    for needle in [bytes.as_bytes(), &raw, hex::encode(&raw).as_bytes()] {
        assert!(!contains(needle), "the secret is readable");
    }
}
