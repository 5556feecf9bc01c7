//! Tests that memory use does not grow with a large backlog, and that the receiver gets the maximum number of
//! concurrent requests.

use countersign_process::{Clock, SystemClock};
use countersign_tests::{ControlPlane, EventSource, Receiver, Reply, Target, eventually};
use sqlx::{AnyConnection, Connection};
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
    sqlx::any::install_default_drivers();
    let mut database = AnyConnection::connect(&control.database_url()).await.unwrap();
    // The first 14 characters of an id are its prefix and time; the rest is random.
    let numbers = "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < $1)";
    let random_part = "substr(CAST(10000000000000000 + n AS TEXT), 2)";
    let events = format!(
        "{numbers} INSERT INTO webhook_events SELECT substr(id, 1, 14) || {random_part}, kind, body, occurred_at \
         FROM webhook_events, numbers"
    );
    let deliveries = format!(
        "{numbers} INSERT INTO webhook_deliveries (target_id, event_id, due_at, attempts) \
         SELECT target_id, substr(event_id, 1, 14) || {random_part}, due_at, 0 FROM webhook_deliveries, numbers"
    );
    for sql in [events, deliveries] {
        let created = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(i64::from(copies)).execute(&mut database);
        assert_eq!(created.await.unwrap().rows_affected(), u64::from(copies));
    }
    database.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn backlog_uses_bounded_memory_and_is_delivered_without_pauses() {
    let count = std::env::var("BACKLOG").map_or(EVENTS, |text| text.parse::<u32>().unwrap());
    let mut control = ControlPlane::start_process().await;
    let receiver = Receiver::start(Reply::Delayed(RESPONSE_TIME, Box::new(Reply::Status(200)))).await;
    let target = Target::create(&control, &receiver.url).await;
    target.pause().await;
    EventSource::new(&control).await.assign().await;
    let is_pending = async || (target.count_deliveries("pending").await == 1).then_some(());
    eventually("the event is pending", is_pending, || control.log()).await;
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
    let elapsed_seconds = receiver.received()[total - 1].at.saturating_sub(started).as_secs_f64();
    let rate = f64::from(count) / elapsed_seconds;
    let utilization = rate * RESPONSE_TIME.as_secs_f64() / f64::from(CONCURRENCY);
    println!(
        "{count} events in {elapsed_seconds:.1} s: {rate:.0}/s, utilization {:.0} %; {} MiB before, {} MiB at most",
        utilization * 100.0,
        before >> 20,
        peak >> 20
    );
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
