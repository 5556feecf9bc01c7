//! Tests that memory use does not grow with a large backlog, and that the server sends as many requests at the same time as it may.

use countersign_process::{Clock, SystemClock};
use countersign_tests::{ControlPlane, Database, EventSource, Reply, Target, bulk::numbers};
use std::{collections::BTreeSet, time::Duration};

/// Number of pending events, unless the variable `BACKLOG` is set. 100000 events were measured by hand.
const EVENTS: u32 = 3_000;

/// Response time of the receiver.
const RESPONSE_TIME: Duration = Duration::from_millis(25);

/// Number of concurrent requests to the receiver.
const CONCURRENCY: u32 = 16;

/// Maximum growth of memory in bytes, independent of the length of the backlog.
const MAX_MEMORY_GROWTH: usize = 48 * 1024 * 1024;

/// Copies the only pending event in the database while the server is stopped.
async fn copy_pending_event(control: &ControlPlane, copies: u32) {
    let mut database = Database::connect_to_write(control).await;
    // The first 14 characters of an id are its prefix and time; the rest is random.
    let (numbers, random_part) = (numbers(1, copies.into()), "substr(CAST(10000000000000000 + n AS TEXT), 2)");
    for sql in [
        format!(
            "{numbers} INSERT INTO webhook_events SELECT substr(id, 1, 14) || {random_part}, kind, body, occurred_at \
             FROM webhook_events, numbers"
        ),
        format!(
            "{numbers} INSERT INTO webhook_deliveries (target_id, event_id, due_at, attempts) \
             SELECT target_id, substr(event_id, 1, 14) || {random_part}, due_at, 0 FROM webhook_deliveries, numbers"
        ),
    ] {
        assert_eq!(database.execute(&sql).await, u64::from(copies));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn backlog_uses_bounded_memory_and_is_delivered_without_pauses() {
    let count = std::env::var("BACKLOG").map_or(EVENTS, |text| text.parse::<u32>().unwrap());
    let mut control = ControlPlane::start_process().await;
    let (target, receiver) =
        Target::with_receiver(&control, Reply::Delayed(RESPONSE_TIME, Box::new(Reply::Status(200)))).await;
    target.pause().await;
    EventSource::new(&control).await.assign().await;
    target.wait_until_count("pending", 1).await;
    assert!(control.terminate().await.success());
    copy_pending_event(&control, count - 1).await;
    control.restart().await;
    assert_eq!(target.count_deliveries("pending").await, u64::from(count));
    for _ in 0..20 {
        control.api.get("/health").await;
    }
    let total = count as usize;
    let (before, mut peak) = (control.resident_memory(), 0);

    let started = SystemClock.since_boot();
    target.resume().await;
    while receiver.count() < total {
        let previous = receiver.count();
        tokio::time::sleep(Duration::from_millis(250)).await;
        peak = peak.max(control.resident_memory());
        let elapsed = SystemClock.since_boot().saturating_sub(started);
        assert!(
            receiver.count() > previous || elapsed < Duration::from_mins(1),
            "deliveries stopped after {previous} events"
        );
    }
    let ids: BTreeSet<_> = receiver.received().iter().map(|request| request.id().to_owned()).collect();
    assert_eq!((ids.len(), receiver.count()), (total, total), "each event is delivered once");
    // The deliveries to the target use all its connections, so the receiver is never idle.
    assert_eq!(receiver.max_open_connections(), CONCURRENCY as usize, "maximum number of concurrent connections");
    assert!(
        receiver.connections() <= 2 * CONCURRENCY as usize,
        "connections are reused, but {} were opened",
        receiver.connections()
    );
    assert!(peak < before + MAX_MEMORY_GROWTH, "{before} bytes before, {peak} at most");
}
