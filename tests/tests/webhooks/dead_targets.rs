//! Tests that requests never wait for webhook targets.

use countersign_tests::{ControlPlane, EventSource, Receiver, RefusingPort, Reply, Target};

/// Number of targets that never respond, and number of targets that refuse connections.
const TARGETS: usize = 5;

/// Number of logins, of role revocations and of role assignments.
const REQUESTS: usize = 20;

/// Also checks that no delivery attempt has ended, because the requests could have waited for an attempt that has
/// ended.
#[tokio::test(flavor = "multi_thread")]
async fn requests_succeed_while_every_attempt_to_a_dead_target_is_open() {
    // If an attempt used a database connection or a lock while it waits, the requests would block.
    let control = ControlPlane::start_with(&["database.max_connections=3", "webhooks.attempt_seconds=300"]).await;
    let (hanging, refusal) = (Receiver::start(Reply::Never).await, RefusingPort::new());
    let mut targets = Vec::new();
    for _ in 0..TARGETS {
        targets.push(Target::create(&control, &hanging.url).await);
        targets.push(Target::create(&control, &refusal.url()).await);
    }
    let source = EventSource::new(&control).await;
    source.assign().await;
    // Each replica makes one attempt at a time to a webhook target that has not responded yet.
    hanging.wait_for_requests(TARGETS).await;
    for _ in 0..REQUESTS {
        let challenge = source.challenge(Some(control.service())).await;
        let signature = source.sign(&challenge);
        source.authenticate(&challenge, &signature).await.expect(200);
        source.revoke().await;
        source.assign().await;
    }
    let attempts = hanging.count();
    assert!(attempts <= TARGETS * control.urls().len(), "{attempts} attempts");
    assert_eq!(hanging.open_connections(), attempts);
    assert!(hanging.disconnects().is_empty(), "no attempt has ended");
    for target in &targets {
        assert_eq!(target.count_deliveries("delivered").await, 0);
    }
}
