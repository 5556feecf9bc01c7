//! Passwords, restricted users and a cluster of one node.

use super::fixture::{Fleet, says};
use countersign_tests::{ControlPlane, Redis, eventually};

pub async fn alone(settings: &[&str]) -> ControlPlane {
    ControlPlane::start_with_default_limits_and(settings).await
}

#[tokio::test(flavor = "multi_thread")]
async fn password_is_used_and_not_logged() {
    let redis = Redis::start_with_password("hunter2-4711").await;
    let control = alone(&[&format!("redis.url={}", redis.url())]).await;
    says(&control, "up").await;
    let wrong = redis.url().replace("hunter2", "hunter3");
    let refused = alone(&[&format!("redis.url={wrong}")]).await;
    says(&refused, "down").await;
    for log in [control.log(), refused.log()] {
        assert!(!log.contains("4711"), "{log}");
    }
}

/// The permissions that the documentation names.
pub const MAY: &str = "user limited on >secret ~{countersign:* &{countersign:* -@all +eval +evalsha +time +llen +lindex +ltrim \
                   +rpush +del +pexpire +publish +subscribe +unsubscribe +ping";

/// The additional permissions for a cluster.
pub const MAY_IN_A_CLUSTER: &str = "+cluster|slots +asking";

/// The URL of this user.
pub fn limited(url: &str) -> String {
    url.replace("://", "://limited:secret@")
}

#[tokio::test(flavor = "multi_thread")]
async fn user_with_the_documented_permissions_suffices() {
    let redis = Redis::start_with(&[MAY]).await;
    let fleet = Fleet::start(&[format!("redis.url={}", limited(&redis.url()))]).await;
    let caller = fleet.counts_together().await;
    fleet.remembers(&caller).await;
    let listens = async || {
        let channels: Vec<String> = redis.command(&["PUBSUB", "CHANNELS"]).await;
        (channels.len() == 1).then_some(())
    };
    eventually("they listen", listens, || redis.log()).await;
    fleet.one.create_role("first", &[]).await;
    fleet.says("up").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_count_together_in_a_single_node_cluster() {
    let redis = Redis::start_cluster_with(&[&format!("{MAY} {MAY_IN_A_CLUSTER}")]).await;
    let settings = [format!("redis.url={}", limited(&redis.url())), "redis.kind=cluster".to_owned()];
    let fleet = Fleet::start(&settings).await;
    let caller = fleet.counts_together().await;
    redis.pause();
    fleet.nobody_waits().await;
    fleet.says("down").await;
    redis.resume();
    fleet.remembers(&caller).await;
}
