//! Tests that each replica counts separately and no request waits while Redis hangs, is killed, refuses writes or is missing.

use super::fixture::{Fleet, LIMIT, count_in_log, health, wait_for_redis_check};
use countersign_tests::{ControlPlane, Redis, prometheus::lint};

const LOST: &str = "redis connection lost";
const CONNECTED: &str = "redis connected";
const UP: &str = r#"countersign_redis_up{kind="single"} "#;

/// Whether a replica has counted operations of Redis with this result.
async fn has_operations(control: &ControlPlane, result: &str) -> bool {
    let line = format!("countersign_redis_operations_total{{result=\"{result}\"}}");
    control.admin().metric(&line).await >= Some(1.0)
}

/// Asserts that each replica applies the full limit separately.
async fn assert_counted_per_replica(fleet: &Fleet) {
    let caller = fleet.caller().await;
    for control in fleet.replicas() {
        fleet.send_burst_to(&caller, &[control]).await.assert_passed(LIMIT);
        assert_eq!(control.admin().metric(UP).await, Some(0.0));
    }
    fleet.send_burst(&caller).await.assert_passed(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_count_separately_while_redis_hangs_and_together_afterwards() {
    let redis = Redis::start().await;
    let fleet = Fleet::with(&redis).await;
    let caller = fleet.assert_counted_together().await;
    let losses = fleet.losses();

    redis.pause();
    fleet.assert_no_request_waits().await;
    assert_counted_per_replica(&fleet).await;
    fleet.wait_for_redis_check("down").await;
    assert_eq!(fleet.losses(), losses + 2, "{}", fleet.first.log());
    for control in fleet.replicas() {
        assert!(has_operations(control, "late").await);
        assert!(has_operations(control, "not_asked").await);
    }

    redis.resume();
    // After the outage, Redis still has the counts from before.
    fleet.assert_limit_exhausted(&caller).await;
    for control in fleet.replicas() {
        assert_eq!(count_in_log(control, CONNECTED), count_in_log(control, LOST) + 1, "{}", control.log());
        assert_eq!(control.admin().metric(UP).await, Some(1.0));
        assert!(has_operations(control, "ok").await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_count_separately_while_redis_is_down_and_together_after_an_empty_restart() {
    let mut redis = Redis::start().await;
    let fleet = Fleet::with(&redis).await;
    fleet.wait_for_redis_check("up").await;
    redis.kill();
    fleet.assert_no_request_waits().await;
    assert_counted_per_replica(&fleet).await;
    fleet.wait_for_redis_check("down").await;
    redis.restart().await;
    fleet.assert_counted_together().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_count_separately_while_redis_is_full() {
    let redis = Redis::start().await;
    let fleet = Fleet::with(&redis).await;
    fleet.wait_for_redis_check("up").await;
    redis.command::<()>(&["CONFIG", "SET", "maxmemory", "1"]).await;
    assert_counted_per_replica(&fleet).await;
    fleet.wait_for_redis_check("down").await;
    redis.command::<()>(&["CONFIG", "SET", "maxmemory", "0"]).await;
    fleet.assert_counted_together().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn control_plane_starts_without_redis_and_connects_later() {
    let mut redis = Redis::start().await;
    redis.kill();
    let control = ControlPlane::start_process_with_default_limits_and(&[&format!("redis.url={}", redis.url())]).await;
    wait_for_redis_check(&control, "down").await;
    assert_eq!(count_in_log(&control, "redis unavailable"), 1);
    let metrics = control.admin().get("/metrics").await.expect(200);
    assert_eq!(lint(metrics.as_str().unwrap()), "");
    control.api.get_as(control.key(), &control.path("/roles")).await.expect(200);
    redis.restart().await;
    wait_for_redis_check(&control, "up").await;
    control.api.get_as(control.key(), &control.path("/roles")).await.expect(200);
    let windows: Vec<String> = redis.command(&["KEYS", "*:proven:*"]).await;
    // Only the last call is counted in Redis, for the service and for its owner.
    assert_eq!(windows.len(), 2, "{windows:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn control_plane_without_redis_reports_no_loss() {
    let control = ControlPlane::start_process_with_default_limits_and(&[]).await;
    let health = health(&control).await;
    let (check, backend) = (&health["checks"]["redis"], &health["backends"]["redis"]);
    assert!(health["status"] == "healthy" && check == "up" && backend == "memory", "{health}");
    assert_eq!(control.admin().metric(UP).await, None);
}
