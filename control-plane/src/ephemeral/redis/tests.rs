//! The windows in a real Redis.

use super::*;
use crate::{
    ephemeral::{
        Kind, Quota, Subject,
        conformance::{conforms, wait_of},
    },
    metrics::{Labels, Metrics},
};
use countersign_process::SystemClock;
use countersign_tests::Redis as Server;

/// Time passes here as everywhere, so windows are short, and told only as exactly as a busy machine sleeps.
const WINDOW: Duration = Duration::from_secs(4);
const GRAIN: Duration = Duration::from_millis(400);

/// Windows of a deployment of this name at this server, connected.
async fn windows(server: &Server, deployment: &str) -> Arc<Redis> {
    let place = Place::new(Servers::Single(server.url().into()), None);
    let metrics = Metrics::new(&Labels { codes: &[], limits: &[], failures: &[] }).unwrap();
    let redis = Arc::new(Redis::new(place, deployment, Arc::new(SystemClock), metrics.redis));
    for _ in 0..100 {
        redis.greet().await;
        if redis.presence() == Presence::Shared {
            return redis;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("Redis does not answer");
}

fn count(name: &str, most: u32) -> [Count; 1] {
    [Count { subject: Subject::new(Kind::Claimed, &[name.as_bytes()]), quota: Quota { most, window: WINDOW } }]
}

async fn send(redis: &Redis, words: &[&str]) -> redis::Value {
    let mut link = redis.hold.borrow().link.clone().unwrap();
    link.send(redis::cmd(words[0]).arg(&words[1..])).await.unwrap()
}

/// The key of the only window there is but that of the keeper.
async fn only_key(redis: &Redis) -> String {
    let mut link = redis.hold.borrow().link.clone().unwrap();
    let keys: Vec<String> = link.send(redis::cmd("KEYS").arg("*:claimed:*")).await.unwrap();
    let [key] = <[String; 1]>::try_from(keys).unwrap();
    key
}

#[tokio::test(flavor = "multi_thread")]
async fn it_conforms() {
    let server = Server::start().await;
    let redis = windows(&server, "conforms").await;
    conforms(redis.clone(), WINDOW, GRAIN, tokio::time::sleep).await;
    assert_eq!(redis.presence(), Presence::Shared, "it was asked to the end");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forgotten_script_is_sent_again_and_windows_go_with_their_time() {
    let server = Server::start().await;
    let redis = windows(&server, "forgets").await;
    assert!(redis.take(&count("one", 1)).await.granted);
    send(&redis, &["SCRIPT", "FLUSH"]).await;
    assert!(!redis.take(&count("one", 1)).await.granted, "counted, and in the same window");
    assert_eq!(redis.presence(), Presence::Shared);
    let key = only_key(&redis).await;
    assert!(key.starts_with("{countersign:forgets}:"), "{key}");
    let redis::Value::Int(life) = send(&redis, &["PTTL", &key]).await else { panic!("a number") };
    assert!(life > 0 && life <= 4000, "{life}");
}

#[tokio::test(flavor = "multi_thread")]
async fn deployments_that_share_a_redis_do_not_meet() {
    let server = Server::start().await;
    let (one, other) = (windows(&server, "one").await, windows(&server, "other").await);
    assert!(one.take(&count("same", 1)).await.granted && other.take(&count("same", 1)).await.granted);
    assert!(!one.take(&count("same", 1)).await.granted && !other.take(&count("same", 1)).await.granted);
}

#[tokio::test(flavor = "multi_thread")]
async fn where_the_clock_went_back_no_more_pass_and_nobody_waits_longer_than_a_window() {
    let server = Server::start().await;
    let redis = windows(&server, "back").await;
    let three = count("three", 3);
    for _ in 0..3 {
        assert!(redis.take(&three).await.granted);
    }
    tokio::time::sleep(WINDOW / 4).await;
    // As if the last two had been counted by a clock that is an hour ahead of this one.
    let key = only_key(&redis).await;
    let ahead = SystemClock.now().micros() + 3_600_000_000;
    for place in ["1", "2"] {
        send(&redis, &["LSET", &key, place, &ahead.to_string()]).await;
    }
    let seen = redis.look(&three).await;
    assert!(!seen.granted && wait_of(&seen) <= WINDOW, "{seen:?}");
    tokio::time::sleep(wait_of(&seen)).await;
    // The first is over, the two others count from when it was noticed.
    assert!(redis.take(&three).await.granted);
    let refused = redis.take(&three).await;
    assert!(!refused.granted && wait_of(&refused) <= WINDOW, "{refused:?}");
    tokio::time::sleep(wait_of(&refused)).await;
    assert!(redis.take(&three).await.granted && redis.take(&three).await.granted);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lowered_limit_says_when_a_call_passes() {
    let server = Server::start().await;
    let redis = windows(&server, "lowered").await;
    for _ in 0..3 {
        assert!(redis.take(&count("one", 3)).await.granted);
        tokio::time::sleep(WINDOW / 8).await;
    }
    let refused = redis.take(&count("one", 1)).await;
    assert!(!refused.granted && refused.readings[0].left == 0);
    assert!(wait_of(&refused) > WINDOW / 2, "not until the third is over: {refused:?}");
    tokio::time::sleep(wait_of(&refused)).await;
    assert!(redis.take(&count("one", 1)).await.granted);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_redis_calls_are_counted_all_the_same() {
    let mut server = Server::start().await;
    let redis = windows(&server, "lost").await;
    assert!(redis.take(&count("one", 2)).await.granted);
    server.kill();
    assert!(redis.take(&count("one", 2)).await.granted && redis.take(&count("one", 2)).await.granted);
    assert!(!redis.take(&count("one", 2)).await.granted, "in windows of its own");
    assert_eq!(redis.presence(), Presence::Lost);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_window_stands_in_nobodys_way() {
    let server = Server::start().await;
    let redis = windows(&server, "junk").await;
    assert!(redis.take(&count("one", 2)).await.granted);
    let key = only_key(&redis).await;
    for junk in [&["SET", &key, "1"][..], &["RPUSH", &key, "x", "y"], &["RPUSH", &key, "0", "x", "1"]] {
        send(&redis, &["DEL", &key]).await;
        send(&redis, junk).await;
        assert!(redis.take(&count("one", 2)).await.granted, "{junk:?}");
        assert!(redis.take(&count("one", 2)).await.granted && !redis.take(&count("one", 2)).await.granted, "{junk:?}");
    }
    assert_eq!(redis.presence(), Presence::Shared);
}
