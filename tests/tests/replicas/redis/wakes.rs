//! The word that something changed.

use super::stage::{Fleet, metric};
use countersign_tests::{Redis, eventually};
use redis::aio::PubSubStream;
use std::time::{Duration, Instant};
use tokio_stream::StreamExt;

/// Changes in a round.
const CHANGES: usize = 20;

/// Sooner than this, of twenty changes hardly one in four is found by looking every 250 ms.
const SOON: Duration = Duration::from_millis(60);

/// Rounds until one was quick: other tests make the machine slow.
const ROUNDS: usize = 5;

pub async fn listen(redis: &Redis, channel: &str) -> PubSubStream {
    let client = redis.client();
    let mut connection = client.get_async_pubsub().await.unwrap();
    connection.subscribe(channel).await.unwrap();
    connection.into_on_message()
}

/// The channel, when both listen to it.
async fn channel(redis: &Redis) -> String {
    let both = async || {
        let channels: Vec<String> = redis.command(&["PUBSUB", "CHANNELS", "{countersign:*"]).await;
        let [channel] = <[String; 1]>::try_from(channels).ok()?;
        let (_, listeners): (String, i64) = redis.command(&["PUBSUB", "NUMSUB", &channel]).await;
        (listeners == 2).then_some(channel)
    };
    eventually("both listen", both, || redis.log()).await
}

/// Of changes at one, how many the other knows soon.
#[expect(clippy::disallowed_methods, reason = "a stopwatch of the test itself")]
async fn known_soon(fleet: &Fleet, round: usize) -> usize {
    let mut soon = 0;
    for change in 0..CHANGES {
        let before = metric(&fleet.other, "countersign_feed_revision").await;
        fleet.one.make_role(&format!("role-{round}-{change}"), &[]).await;
        let began = Instant::now();
        let known = async || (metric(&fleet.other, "countersign_feed_revision").await > before).then_some(());
        eventually("the other knows", known, || fleet.other.log()).await;
        soon += usize::from(began.elapsed() < SOON);
    }
    soon
}

#[tokio::test(flavor = "multi_thread")]
async fn others_know_at_once_and_each_change_is_told_once() {
    let redis = Redis::start().await;
    let settings = [format!("redis.url={}", redis.url()), "limits.management_per_minute=100000".to_owned()];
    let fleet = Fleet::start(&settings).await;
    let channel = channel(&redis).await;
    let mut words = listen(&redis, &channel).await;
    fleet.one.make_role("first", &[]).await;
    let word = tokio::time::timeout(Duration::from_secs(5), words.next()).await.unwrap().unwrap();
    assert_eq!(word.get_payload_bytes(), b"", "it says no more");
    // Whoever heard it says nothing to that.
    let echo = tokio::time::timeout(Duration::from_secs(1), words.next()).await;
    assert!(echo.is_err(), "{echo:?}");

    let mut best = 0;
    for round in 0..ROUNDS {
        best = best.max(known_soon(&fleet, round).await);
        if best > CHANGES * 3 / 4 {
            break;
        }
    }
    assert!(best > CHANGES * 3 / 4, "{best} of {CHANGES} within {SOON:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_loss_they_listen_again() {
    let mut redis = Redis::start().await;
    let fleet = Fleet::start(&[format!("redis.url={}", redis.url())]).await;
    channel(&redis).await;
    redis.kill();
    fleet.says("down").await;
    // Others find it by looking.
    let before = metric(&fleet.other, "countersign_feed_revision").await;
    fleet.one.make_role("meanwhile", &[]).await;
    let known = async || (metric(&fleet.other, "countersign_feed_revision").await > before).then_some(());
    eventually("the other knows", known, || fleet.other.log()).await;
    redis.restart().await;
    fleet.says("up").await;
    channel(&redis).await;
}
