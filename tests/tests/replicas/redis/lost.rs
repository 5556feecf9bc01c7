//! A Redis that hangs, dies, refuses writes or is missing: each replica counts alone, and no request waits.

use super::fixture::{Fleet, MOST, health, logged, metric, says};
use countersign_tests::{ControlPlane, Redis, http::HttpClient, prometheus::lint};

const LOST: &str = "redis connection lost";
const THERE: &str = "redis connected";
const UP: &str = r#"countersign_redis_up{kind="single"}"#;

/// Asserts that each replica applies the full limit on its own.
async fn is_counted_alone(fleet: &Fleet) {
    let caller = fleet.caller().await;
    for control in fleet.both() {
        fleet.crowd_at(&caller, &[control]).await.is_counted(MOST);
        assert_eq!(metric(control, UP).await, Some(0.0));
    }
    fleet.crowd(&caller).await.is_counted(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_count_alone_while_redis_hangs_and_together_afterwards() {
    let redis = Redis::start().await;
    let fleet = Fleet::start(&[format!("redis.url={}", redis.url())]).await;
    let caller = fleet.counts_together().await;
    let losses = fleet.losses();

    redis.pause();
    fleet.nobody_waits().await;
    is_counted_alone(&fleet).await;
    fleet.says("down").await;
    assert_eq!(fleet.losses(), losses + 2, "{}", fleet.one.log());
    for control in fleet.both() {
        assert!(metric(control, r#"countersign_redis_operations_total{result="late"}"#).await >= Some(1.0));
        assert!(metric(control, r#"countersign_redis_operations_total{result="not_asked"}"#).await >= Some(1.0));
    }

    redis.resume();
    // Redis still has the earlier counts.
    fleet.remembers(&caller).await;
    for control in fleet.both() {
        assert_eq!(logged(control, THERE), logged(control, LOST) + 1, "{}", control.log());
        assert_eq!(metric(control, UP).await, Some(1.0));
        assert!(metric(control, r#"countersign_redis_operations_total{result="ok"}"#).await >= Some(1.0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_count_alone_while_redis_is_down_and_together_after_an_empty_restart() {
    let mut redis = Redis::start().await;
    let fleet = Fleet::start(&[format!("redis.url={}", redis.url())]).await;
    fleet.says("up").await;
    redis.kill();
    fleet.nobody_waits().await;
    is_counted_alone(&fleet).await;
    fleet.says("down").await;
    redis.restart().await;
    fleet.counts_together().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_count_alone_while_redis_is_full() {
    let redis = Redis::start().await;
    let fleet = Fleet::start(&[format!("redis.url={}", redis.url())]).await;
    fleet.says("up").await;
    redis.command::<()>(&["CONFIG", "SET", "maxmemory", "1"]).await;
    is_counted_alone(&fleet).await;
    fleet.says("down").await;
    redis.command::<()>(&["CONFIG", "SET", "maxmemory", "0"]).await;
    fleet.counts_together().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn control_plane_starts_without_redis_and_connects_later() {
    let mut redis = Redis::start().await;
    redis.kill();
    let control = ControlPlane::start_with_default_limits_and(&[&format!("redis.url={}", redis.url())]).await;
    says(&control, "down").await;
    assert_eq!(logged(&control, "redis unavailable"), 1);
    let shown = HttpClient::plain(control.env["ADMIN_URL"].clone()).get("/metrics").await.expect(200);
    assert_eq!(lint(shown.as_str().unwrap()), "");
    control.api.get_as(control.key(), &control.path("/roles")).await.expect(200);
    redis.restart().await;
    says(&control, "up").await;
    control.api.get_as(control.key(), &control.path("/roles")).await.expect(200);
    let windows: Vec<String> = redis.command(&["KEYS", "*:proven:*"]).await;
    assert_eq!(windows.len(), 1, "that of the call: {windows:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn control_plane_without_redis_reports_no_loss() {
    let control = ControlPlane::start_with_default_limits().await;
    let health = health(&control).await;
    assert_eq!(health["status"], "healthy");
    assert_eq!(
        (health["checks"]["redis"].as_str(), health["backends"]["redis"].as_str()),
        (Some("up"), Some("memory"))
    );
    assert_eq!(metric(&control, UP).await, None);
}
