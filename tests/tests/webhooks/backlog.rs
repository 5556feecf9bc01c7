//! A backlog of many events: memory use does not grow with it, and the receiver gets as many at once as it may.

use countersign_process::{Clock, SystemClock};
use countersign_tests::{ControlPlane, EventSource, Receiver, Reply, Target, eventually};
use sqlx::{AnyConnection, Connection};
use std::{collections::BTreeSet, time::Duration};

/// How many events wait, unless `BACKLOG` says otherwise (100000 is what was measured by hand).
const EVENTS: u32 = 3_000;

/// How long the receiver takes for each.
const EACH: Duration = Duration::from_millis(25);

/// How many it is sent at a time.
const AT_A_TIME: u32 = 8;

/// How many bytes more than before a backlog may take, whatever its length.
const MORE_MEMORY: usize = 48 * 1024 * 1024;

/// Makes copies of the only event that waits, as the server would have written it, with the server away.
async fn multiply(control: &ControlPlane, copies: u32) {
    sqlx::any::install_default_drivers();
    let mut database = AnyConnection::connect(&control.database_url()).await.unwrap();
    // Fourteen characters of an id say what it is and when it was made; the rest is chance.
    let numbers = "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < $1)";
    let sixteen = "substr(CAST(10000000000000000 + n AS TEXT), 2)";
    let events = format!(
        "{numbers} INSERT INTO webhook_events SELECT substr(id, 1, 14) || {sixteen}, kind, body, occurred_at \
         FROM webhook_events, numbers"
    );
    let deliveries = format!(
        "{numbers} INSERT INTO webhook_deliveries (target_id, event_id, due_at, attempts) \
         SELECT target_id, substr(event_id, 1, 14) || {sixteen}, due_at, 0 FROM webhook_deliveries, numbers"
    );
    for sql in [events, deliveries] {
        let made = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(i64::from(copies)).execute(&mut database);
        assert_eq!(made.await.unwrap().rows_affected(), u64::from(copies));
    }
    database.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn backlog_uses_bounded_memory_and_is_delivered_without_pauses() {
    let count = std::env::var("BACKLOG").map_or(EVENTS, |text| text.parse::<u32>().unwrap());
    let mut control = ControlPlane::start_with(&[&format!("webhooks.target_concurrency={AT_A_TIME}")]).await;
    let receiver = Receiver::start(Reply::After(EACH, Box::new(Reply::Status(200)))).await;
    let target = Target::create(&control, &receiver.url).await;
    target.pause().await;
    EventSource::new(&control).await.assign().await;
    let sorted = async || (target.total("pending").await == 1).then_some(());
    eventually("the event is on its way", sorted, || control.log()).await;
    assert!(control.terminate().await.success());
    multiply(&control, count - 1).await;
    control.restart().await;
    assert_eq!(target.total("pending").await, u64::from(count));
    for _ in 0..20 {
        control.api.get("/health").await;
    }
    let all = count as usize;
    let (before, mut most) = (control.resident_memory(), 0);

    let began = SystemClock.since_boot();
    target.resume().await;
    while receiver.count() < all {
        let so_far = receiver.count();
        tokio::time::sleep(Duration::from_millis(250)).await;
        most = most.max(control.resident_memory());
        let waited = SystemClock.since_boot().saturating_sub(began);
        assert!(receiver.count() > so_far || waited < Duration::from_mins(1), "stuck after {so_far} events");
    }
    let took = receiver.received()[all - 1].at.saturating_sub(began).as_secs_f64();
    let rate = f64::from(count) / took;
    let busy = rate * EACH.as_secs_f64() / f64::from(AT_A_TIME);
    println!(
        "{count} events in {took:.1} s: {rate:.0}/s, busy {:.0} % of the time; {} MiB before, {} MiB at most",
        busy * 100.0,
        before >> 20,
        most >> 20
    );
    let ids: BTreeSet<_> = receiver.received().iter().map(|one| one.id().to_owned()).collect();
    assert_eq!((ids.len(), receiver.count()), (all, all), "each once");
    // All connections that the target may have are used, so the receiver is kept busy.
    assert_eq!(receiver.max_open(), AT_A_TIME as usize, "connections at once");
    assert!(
        receiver.connections() <= 2 * AT_A_TIME as usize,
        "connections are used again, {} were made",
        receiver.connections()
    );
    assert!(most < before + MORE_MEMORY, "{before} bytes before, {most} at most");
}
