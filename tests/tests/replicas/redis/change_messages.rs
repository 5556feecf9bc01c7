//! Messages that wake other replicas after a change.

use super::fixture::Fleet;
use countersign_tests::{ControlPlane, Redis, eventually};
use redis::aio::PubSubStream;
use std::time::{Duration, Instant};
use tokio_stream::StreamExt;

/// Number of changes.
const CHANGES: usize = 20;

/// Interval at which a replica polls for changes.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Maximum number of reads per poll, including those of background jobs.
const MAX_READS_PER_POLL: f64 = 5.0;

/// Number of messages between two scrapes of the metrics.
const MESSAGES_PER_SCRAPE: usize = 100;

/// Number of reads that messages must cause in addition to polls and background jobs.
const REQUIRED_READS: f64 = 50.0;

/// Deadline of the tests, with a margin for busy machines.
const DEADLINE: Duration = Duration::from_mins(1);

pub async fn subscribe(redis: &Redis, channel: &str) -> PubSubStream {
    let client = redis.client();
    let mut connection = client.get_async_pubsub().await.unwrap();
    connection.subscribe(channel).await.unwrap();
    connection.into_on_message()
}

/// Waits until both replicas subscribe to the Redis channel, and returns the name of the channel.
async fn wait_for_subscriptions(redis: &Redis) -> String {
    let both_subscribed = async || {
        let channels: Vec<String> = redis.command(&["PUBSUB", "CHANNELS", "{countersign:*"]).await;
        let [channel] = <[String; 1]>::try_from(channels).ok()?;
        let (_, subscribers): (String, i64) = redis.command(&["PUBSUB", "NUMSUB", &channel]).await;
        (subscribers == 2).then_some(channel)
    };
    eventually("both replicas subscribe", both_subscribed, || redis.log()).await
}

/// Waits for the next message, which is empty.
async fn next_message(messages: &mut PubSubStream) {
    let message = tokio::time::timeout(DEADLINE, messages.next()).await.unwrap().unwrap();
    assert_eq!(message.get_payload_bytes(), b"");
}

/// Number of read transactions of a replica.
async fn reads(control: &ControlPlane) -> f64 {
    control.admin().metric_sum("countersign_store_transactions_total", r#"kind="read""#).await
}

#[tokio::test(flavor = "multi_thread")]
async fn each_change_is_published_once_and_not_again_by_the_other_replica() {
    let redis = Redis::start().await;
    let settings = [format!("redis.url={}", redis.url()), "limits.management_per_minute=100000".to_owned()];
    let fleet = Fleet::start(&settings).await;
    let channel = wait_for_subscriptions(&redis).await;
    let mut messages = subscribe(&redis, &channel).await;
    for change in 0..CHANGES {
        fleet.first.create_role(&format!("role-{change}"), &[]).await;
        next_message(&mut messages).await;
    }
    let repeated = tokio::time::timeout(Duration::from_secs(1), messages.next()).await;
    assert!(repeated.is_err(), "{repeated:?}");
}

/// Without change messages, a replica reads only when it polls the database. The test therefore requires more reads
/// than polls and background jobs cause.
#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::disallowed_methods, reason = "the expected number of polls depends on the elapsed time")]
async fn message_makes_a_replica_read_changes_before_its_next_poll() {
    let redis = Redis::start().await;
    let fleet = Fleet::with(&redis).await;
    let channel = wait_for_subscriptions(&redis).await;
    let (before, start) = (reads(&fleet.second).await, Instant::now());
    loop {
        for _ in 0..MESSAGES_PER_SCRAPE {
            let _receivers: i64 = redis.command(&["PUBLISH", &channel, ""]).await;
        }
        let polls = MAX_READS_PER_POLL * (start.elapsed().as_secs_f64() / POLL_INTERVAL.as_secs_f64() + 1.0);
        let caused = reads(&fleet.second).await - before - polls;
        if caused >= REQUIRED_READS {
            return;
        }
        assert!(start.elapsed() < DEADLINE, "messages caused {caused} reads\n{}", fleet.second.log());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_subscribe_again_after_redis_restarts() {
    let mut redis = Redis::start().await;
    let fleet = Fleet::with(&redis).await;
    wait_for_subscriptions(&redis).await;
    redis.kill();
    fleet.wait_for_redis_check("down").await;
    // The second replica receives the change by polling.
    let revision = async || fleet.second.admin().metric("countersign_feed_revision ").await;
    let before = revision().await;
    fleet.first.create_role("meanwhile", &[]).await;
    let updated = async || (revision().await > before).then_some(());
    eventually("the second replica has the change", updated, || fleet.second.log()).await;
    redis.restart().await;
    fleet.wait_for_redis_check("up").await;
    wait_for_subscriptions(&redis).await;
}
