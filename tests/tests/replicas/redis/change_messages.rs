//! Messages that wake other replicas after a change.

use super::fixture::{Fleet, metric};
use countersign_tests::{ControlPlane, HttpClient, Redis, eventually};
use redis::aio::PubSubStream;
use std::time::{Duration, Instant};
use tokio_stream::StreamExt;

/// Changes that are each published once.
const CHANGES: usize = 20;

/// Interval of the poll.
const POLL: Duration = Duration::from_millis(250);

/// Maximum reads per poll, including background jobs.
const BACKGROUND: f64 = 5.0;

/// Messages between two scrapes of the metrics.
const MESSAGES: usize = 100;

/// Reads beyond polls and background jobs that messages must cause.
const READS: f64 = 50.0;

/// Deadline on a busy machine.
const DEADLINE: Duration = Duration::from_mins(1);

pub async fn subscribe(redis: &Redis, channel: &str) -> PubSubStream {
    let client = redis.client();
    let mut connection = client.get_async_pubsub().await.unwrap();
    connection.subscribe(channel).await.unwrap();
    connection.into_on_message()
}

/// Waits until both replicas subscribe. Returns the channel.
async fn await_subscriptions(redis: &Redis) -> String {
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
    let text = HttpClient::plain(control.env["ADMIN_URL"].clone()).get("/metrics").await.expect(200);
    let reads = text
        .as_str()
        .unwrap()
        .lines()
        .filter(|line| line.starts_with("countersign_store_transactions_total") && line.contains(r#"kind="read""#));
    reads.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_change_is_published_once_and_not_repeated_by_the_other_replica() {
    let redis = Redis::start().await;
    let settings = [format!("redis.url={}", redis.url()), "limits.management_per_minute=100000".to_owned()];
    let fleet = Fleet::start(&settings).await;
    let channel = await_subscriptions(&redis).await;
    let mut messages = subscribe(&redis, &channel).await;
    for change in 0..CHANGES {
        fleet.one.create_role(&format!("role-{change}"), &[]).await;
        next_message(&mut messages).await;
    }
    let repeated = tokio::time::timeout(Duration::from_secs(1), messages.next()).await;
    assert!(repeated.is_err(), "{repeated:?}");
}

/// Without messages a replica reads only when it polls. So the test counts reads: more than polls and background jobs
/// explain.
#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::disallowed_methods, reason = "the number of polls follows from the time that has passed")]
async fn a_message_makes_a_replica_read_changes_without_waiting_for_its_poll() {
    let redis = Redis::start().await;
    let fleet = Fleet::start(&[format!("redis.url={}", redis.url())]).await;
    let channel = await_subscriptions(&redis).await;
    let (before, began) = (reads(&fleet.other).await, Instant::now());
    loop {
        for _ in 0..MESSAGES {
            let _receivers: i64 = redis.command(&["PUBLISH", &channel, ""]).await;
        }
        let polls = BACKGROUND * (began.elapsed().as_secs_f64() / POLL.as_secs_f64() + 1.0);
        let caused = reads(&fleet.other).await - before - polls;
        if caused >= READS {
            return;
        }
        assert!(began.elapsed() < DEADLINE, "messages caused {caused} reads\n{}", fleet.other.log());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_subscribe_again_after_a_loss() {
    let mut redis = Redis::start().await;
    let fleet = Fleet::start(&[format!("redis.url={}", redis.url())]).await;
    await_subscriptions(&redis).await;
    redis.kill();
    fleet.await_redis_check("down").await;
    // The other replica finds the change by polling.
    let before = metric(&fleet.other, "countersign_feed_revision").await;
    fleet.one.create_role("meanwhile", &[]).await;
    let updated = async || (metric(&fleet.other, "countersign_feed_revision").await > before).then_some(());
    eventually("the other replica has the change", updated, || fleet.other.log()).await;
    redis.restart().await;
    fleet.await_redis_check("up").await;
    await_subscriptions(&redis).await;
}
