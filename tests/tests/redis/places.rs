//! TLS, passwords, clusters and Sentinels.

use crate::stage::{Fleet, MOST, says};
use countersign_tests::{ControlPlane, Redis, Sentinel, eventually};

async fn alone(settings: &[&str]) -> ControlPlane {
    ControlPlane::start_as_shipped_with(settings).await
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_is_believed_by_the_authority_that_is_named_and_by_no_other() {
    let redis = Redis::start_with_tls().await;
    let url = format!("redis.url={}", redis.url());
    let file = format!("redis.ca_file={}", redis.authority().display());
    says(&alone(&[&url, &file]).await, "up").await;
    let stranger = Redis::start_with_tls().await;
    let other_file = format!("redis.ca_file={}", stranger.authority().display());
    for settings in [&[url.as_str()][..], &[&url, &other_file]] {
        let control = alone(settings).await;
        says(&control, "down").await;
        // It serves all the same.
        control.api.get_as(control.key(), &control.path("/roles")).await.expect(200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_opens_and_is_never_logged() {
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

/// As README says it to operators.
const MAY: &str = "user limited on >secret ~{countersign:* &{countersign:* -@all +eval +evalsha +time +llen +lindex +ltrim \
                   +rpush +del +pexpire +publish +subscribe +unsubscribe +ping";

/// The URL for that user.
fn limited(url: &str) -> String {
    url.replace("redis://", "redis://limited:secret@")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_who_may_do_no_more_than_it_takes_suffices() {
    let redis = Redis::start_with(&[MAY]).await;
    let fleet = Fleet::start(&[format!("redis.url={}", limited(&redis.url()))]).await;
    let caller = fleet.counts_together().await;
    fleet.remembers(&caller).await;
    let listens = async || {
        let channels: Vec<String> = redis.command(&["PUBSUB", "CHANNELS"]).await;
        (channels.len() == 1).then_some(())
    };
    eventually("they listen", listens, || redis.log()).await;
    fleet.one.make_role("first", &[]).await;
    fleet.says("up").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_cluster_it_is_counted_together() {
    let redis = Redis::start_cluster_with(&[&format!("{MAY} +cluster|slots")]).await;
    let settings = [format!("redis.url={}", limited(&redis.url())), "redis.kind=cluster".to_owned()];
    let fleet = Fleet::start(&settings).await;
    let caller = fleet.counts_together().await;
    redis.pause();
    fleet.nobody_waits().await;
    fleet.says("down").await;
    redis.resume();
    fleet.remembers(&caller).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinels_lead_to_the_next_master_which_remembers() {
    let user = format!("{MAY} +role");
    let mut master = Redis::start_with(&[&user]).await;
    let replica = Redis::start_replica_of(&master, &[&user]).await;
    let sentinel = Sentinel::watching(&master).await;
    let settings = [
        // The user is that of Redis; this Sentinel asks for none.
        format!("redis.url={}", limited(&sentinel.url())),
        "redis.kind=sentinel".to_owned(),
        "redis.sentinel_master=limits".to_owned(),
    ];
    let fleet = Fleet::start(&settings).await;
    let caller = fleet.counts_together().await;
    let copied = async || {
        let keys: Vec<String> = replica.command(&["KEYS", "*:proven:*"]).await;
        for key in keys {
            if replica.command::<usize>(&["LLEN", &key]).await == MOST {
                return Some(());
            }
        }
        None
    };
    eventually("it is copied", copied, || replica.log()).await;
    master.kill();
    fleet.nobody_waits().await;
    fleet.says("down").await;
    fleet.remembers(&caller).await;
    let role: String = replica.command(&["INFO", "replication"]).await;
    assert!(role.contains("role:master"), "{role}");
}
