//! Requests never wait for webhook targets.

use countersign_tests::{ControlPlane, EventSource, Receiver, RefusingPort, Reply, Target};

/// Of each kind: targets that never answer, and targets that refuse connections.
const TARGETS: usize = 5;

/// Logins, role revocations and role assignments.
const REQUESTS: usize = 20;

/// The test would also pass if attempts ended during the requests, so it checks that none did.
#[tokio::test(flavor = "multi_thread")]
async fn requests_are_answered_while_every_attempt_to_a_dead_target_is_still_open() {
    // An attempt that held one of two database connections, or a lock, would stop the requests.
    let control = ControlPlane::start_with(&["database.max_connections=2", "webhooks.attempt_seconds=300"]).await;
    let (hanging, refusal) = (Receiver::start(Reply::Never).await, RefusingPort::new());
    let mut targets = Vec::new();
    for _ in 0..TARGETS {
        targets.push(Target::create(&control, &hanging.url).await);
        targets.push(Target::create(&control, &refusal.url()).await);
    }
    let source = EventSource::new(&control).await;
    source.assign().await;
    // A target that has not answered yet gets one attempt at a time.
    hanging.until(TARGETS).await;
    for _ in 0..REQUESTS {
        let challenge = source.challenge(Some(control.service())).await;
        let signature = source.signature(&challenge);
        source.answer(&challenge, &signature).await.expect(200);
        source.revoke().await;
        source.assign().await;
    }
    assert_eq!((hanging.count(), hanging.open()), (TARGETS, TARGETS), "requests and open connections");
    assert!(hanging.disconnects().is_empty(), "an attempt ended");
    for target in &targets {
        assert_eq!(target.total("delivered").await, 0);
    }
}
