//! Tests of the rate limiter with a real Redis.

use super::*;
use crate::{
    ephemeral::{
        CallerKind, MemoryRateLimiter, Quota, RateLimit, RateLimitBackend, RateLimitKey, RateLimiter,
        conformance::{assert_conforms, retry_after},
    },
    metrics::{LabelValues, Metrics},
};
use countersign_process::{Clock, SystemClock};
use countersign_test_engines::Redis as RedisServer;
use std::{sync::Arc, time::Duration};

/// Redis measures real time, so windows must be short.
const WINDOW: Duration = Duration::from_secs(4);

/// On a busy machine, a sleep can take longer than requested by this duration.
const PRECISION: Duration = Duration::from_millis(400);

/// A connected rate limiter for the Countersign deployment with the name `deployment`, and the Redis client of the limiter.
async fn connected_limiter(server: &RedisServer, deployment: &str) -> (Arc<RedisClient>, Arc<RedisRateLimiter>) {
    let endpoint = RedisEndpoint::new(RedisServers::Single(server.url().into()), None);
    let metrics = Metrics::new(&LabelValues::default()).unwrap();
    let client = Arc::new(RedisClient::new(endpoint, deployment, metrics.redis));
    for _ in 0..100 {
        client.connect_at_startup().await;
        if client.is_connected() {
            let limiter = RedisRateLimiter::new(client.clone(), MemoryRateLimiter::new(Arc::new(SystemClock)));
            return (client, Arc::new(limiter));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("Redis does not respond");
}

fn limit(name: &str, max_calls: u32) -> [RateLimit; 1] {
    let key = RateLimitKey::new(CallerKind::Unauthenticated, &[name.as_bytes()]);
    [RateLimit { key, quota: Quota { max_calls, window: WINDOW } }]
}

async fn send(client: &RedisClient, command: &[&str]) -> redis::Value {
    client.connection().unwrap().send(redis::cmd(command[0]).arg(&command[1..])).await.unwrap()
}

/// The key of the only unauthenticated caller.
async fn only_key(client: &RedisClient) -> String {
    let keys: Vec<String> = client.connection().unwrap().send(redis::cmd("KEYS").arg("*:claimed:*")).await.unwrap();
    let [key] = <[String; 1]>::try_from(keys).unwrap();
    key
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_rate_limiter_conforms() {
    let server = RedisServer::start().await;
    let (_, limiter) = connected_limiter(&server, "conforms").await;
    assert_conforms(limiter.clone(), WINDOW, PRECISION, tokio::time::sleep).await;
    assert_eq!(limiter.backend(), RateLimitBackend::Redis, "a request to Redis failed");
}

#[tokio::test(flavor = "multi_thread")]
async fn flushed_script_is_sent_again_and_keys_expire_with_their_window() {
    let server = RedisServer::start().await;
    let (client, limiter) = connected_limiter(&server, "flushed").await;
    assert!(limiter.acquire(&limit("one", 1)).await.allowed);
    send(&client, &["SCRIPT", "FLUSH"]).await;
    assert!(!limiter.acquire(&limit("one", 1)).await.allowed, "the call was not counted in the same window");
    assert_eq!(limiter.backend(), RateLimitBackend::Redis);
    let key = only_key(&client).await;
    assert!(key.starts_with("{countersign:flushed}:"), "{key}");
    let redis::Value::Int(lifetime) = send(&client, &["PTTL", &key]).await else {
        panic!("PTTL must return an integer")
    };
    assert!(lifetime > 0 && lifetime <= 4000, "{lifetime}");
}

#[tokio::test(flavor = "multi_thread")]
async fn deployments_sharing_a_redis_have_separate_counters() {
    let server = RedisServer::start().await;
    let ((_, first), (_, second)) =
        (connected_limiter(&server, "one").await, connected_limiter(&server, "other").await);
    assert!(first.acquire(&limit("same", 1)).await.allowed && second.acquire(&limit("same", 1)).await.allowed);
    assert!(!first.acquire(&limit("same", 1)).await.allowed && !second.acquire(&limit("same", 1)).await.allowed);
}

#[tokio::test(flavor = "multi_thread")]
async fn clock_going_back_allows_no_extra_calls_and_no_wait_exceeds_the_window() {
    let server = RedisServer::start().await;
    let (client, limiter) = connected_limiter(&server, "back").await;
    let three_calls = limit("three", 3);
    for _ in 0..3 {
        assert!(limiter.acquire(&three_calls).await.allowed);
    }
    tokio::time::sleep(WINDOW / 4).await;
    // Change the times of the last two calls, as if the clock had been an hour ahead.
    let key = only_key(&client).await;
    let future_micros = SystemClock.now().micros() + 3_600_000_000;
    for index in ["1", "2"] {
        send(&client, &["LSET", &key, index, &future_micros.to_string()]).await;
    }
    let refused = limiter.peek(&three_calls).await;
    assert!(!refused.allowed && retry_after(&refused) <= WINDOW, "{refused:?}");
    tokio::time::sleep(retry_after(&refused)).await;
    // The first of the three calls has expired; `peek` has set the times of the other two calls, which were in the future, to
    // the time at which it ran.
    assert!(limiter.acquire(&three_calls).await.allowed);
    let refused = limiter.acquire(&three_calls).await;
    assert!(!refused.allowed && retry_after(&refused) <= WINDOW, "{refused:?}");
    tokio::time::sleep(retry_after(&refused)).await;
    assert!(limiter.acquire(&three_calls).await.allowed && limiter.acquire(&three_calls).await.allowed);
}

#[tokio::test(flavor = "multi_thread")]
async fn lowered_limit_reports_when_a_call_is_allowed() {
    let server = RedisServer::start().await;
    let (_, limiter) = connected_limiter(&server, "lowered").await;
    for _ in 0..3 {
        assert!(limiter.acquire(&limit("one", 3)).await.allowed);
        tokio::time::sleep(WINDOW / 8).await;
    }
    let refused = limiter.acquire(&limit("one", 1)).await;
    assert!(!refused.allowed && refused.statuses[0].remaining == 0);
    assert!(retry_after(&refused) > WINDOW / 2, "allowed before the third call expires: {refused:?}");
    tokio::time::sleep(retry_after(&refused)).await;
    assert!(limiter.acquire(&limit("one", 1)).await.allowed);
}

#[tokio::test(flavor = "multi_thread")]
async fn counts_in_memory_while_redis_is_unavailable() {
    let mut server = RedisServer::start().await;
    let (_, limiter) = connected_limiter(&server, "lost").await;
    assert!(limiter.acquire(&limit("one", 2)).await.allowed);
    server.kill();
    assert!(limiter.acquire(&limit("one", 2)).await.allowed && limiter.acquire(&limit("one", 2)).await.allowed);
    assert!(!limiter.acquire(&limit("one", 2)).await.allowed, "the fallback does not enforce the limit");
    assert_eq!(limiter.backend(), RateLimitBackend::MemoryFallback);
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_with_foreign_content_are_replaced() {
    let server = RedisServer::start().await;
    let (client, limiter) = connected_limiter(&server, "foreign").await;
    let two_calls = limit("one", 2);
    assert!(limiter.acquire(&two_calls).await.allowed);
    let key = only_key(&client).await;
    for command in [&["SET", &key, "1"][..], &["RPUSH", &key, "x", "y"], &["RPUSH", &key, "0", "x", "1"]] {
        send(&client, &["DEL", &key]).await;
        send(&client, command).await;
        assert!(limiter.acquire(&two_calls).await.allowed, "{command:?}");
        assert!(limiter.acquire(&two_calls).await.allowed && !limiter.acquire(&two_calls).await.allowed, "{command:?}");
    }
    assert_eq!(limiter.backend(), RateLimitBackend::Redis);
}
