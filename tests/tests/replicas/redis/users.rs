//! Tests with passwords, and with a user that has only the documented permissions on a server or a single-node cluster.

use super::fixture::{Fleet, wait_for_redis_check};
use countersign_tests::{ControlPlane, Redis, eventually};

pub async fn start_control_plane(settings: &[&str]) -> ControlPlane {
    ControlPlane::start_process_with_default_limits_and(settings).await
}

#[tokio::test(flavor = "multi_thread")]
async fn password_is_used_and_not_logged() {
    let redis = Redis::start_with_password("hunter2-4711").await;
    let control = start_control_plane(&[&format!("redis.url={}", redis.url())]).await;
    wait_for_redis_check(&control, "up").await;
    let wrong_url = redis.url().replace("hunter2", "hunter3");
    let refused = start_control_plane(&[&format!("redis.url={wrong_url}")]).await;
    wait_for_redis_check(&refused, "down").await;
    for log in [control.log(), refused.log()] {
        assert!(!log.contains("4711"), "{log}");
    }
}

/// ACL line of a user with the documented permissions.
pub const USER_ACL: &str = "user limited on >secret ~{countersign:* &{countersign:* -@all +eval +evalsha +time +llen \
                            +lindex +ltrim +rpush +del +pexpire +publish +subscribe +unsubscribe +ping";

/// The additional documented permissions for a cluster.
pub const CLUSTER_PERMISSIONS: &str = "+cluster|slots +asking";

/// A Redis URL with the name and password of [`USER_ACL`].
pub fn url_with_user(url: &str) -> String {
    url.replace("://", "://limited:secret@")
}

/// The setting `redis.url` for the servers with these URLs, which are separated by commas. `kind` is the end of the URL scheme:
/// empty, `+sentinel` or `+cluster`.
pub fn redis_url(urls: &str, kind: &str, parameters: &[String]) -> String {
    let (scheme, first) = urls.split_once("://").unwrap();
    let mut hosts = first.split(',');
    let first = hosts.next().unwrap();
    // Keep the user and the password only in the first URL: they apply to all servers.
    let others = hosts.map(|url| url.rsplit(['/', '@']).next().unwrap());
    let hosts: Vec<_> = std::iter::once(first).chain(others).collect();
    let separator = if parameters.is_empty() { "" } else { "?" };
    format!("redis.url={scheme}{kind}://{}{separator}{}", hosts.join(","), parameters.join("&"))
}

#[tokio::test(flavor = "multi_thread")]
async fn user_with_the_documented_permissions_suffices() {
    let redis = Redis::start_with(&[USER_ACL]).await;
    let fleet = Fleet::start(&[format!("redis.url={}", url_with_user(&redis.url()))]).await;
    let caller = fleet.assert_counted_together().await;
    fleet.assert_limit_exhausted(&caller).await;
    let subscribed = async || {
        let channels: Vec<String> = redis.command(&["PUBSUB", "CHANNELS"]).await;
        (channels.len() == 1).then_some(())
    };
    eventually("a replica subscribes", subscribed, || redis.log()).await;
    fleet.first.create_role("first", &[]).await;
    fleet.wait_for_redis_check("up").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_count_together_in_a_single_node_cluster() {
    let redis = Redis::start_cluster_with(&[&format!("{USER_ACL} {CLUSTER_PERMISSIONS}")]).await;
    let fleet = Fleet::start(&[redis_url(&url_with_user(&redis.url()), "+cluster", &[])]).await;
    let caller = fleet.assert_counted_together().await;
    redis.pause();
    fleet.assert_no_request_waits().await;
    fleet.wait_for_redis_check("down").await;
    redis.resume();
    fleet.assert_limit_exhausted(&caller).await;
}
