//! A single Sentinel; three Sentinels with authentication, one of them dead; a master with two replicas; TLS with a
//! client certificate.

use super::{
    fixture::{Caller, Fleet, is_copied},
    places::{MAY, limited},
};
use countersign_tests::{Redis, Sentinel, TlsFiles, eventually};

/// The current role of a server. A Sentinel that changes it closes connections, including this one.
async fn role(redis: &Redis) -> Option<String> {
    let said: String = redis.try_command(&["INFO", "replication"]).await.ok()?;
    Some(said.lines().find_map(|line| line.strip_prefix("role:"))?.trim().to_owned())
}

/// A master with a replica, and control planes that find it through a Sentinel.
struct Watched {
    master: Redis,
    replica: Redis,
    fleet: Fleet,
    /// A caller who has exhausted the limit.
    caller: Caller,
    _sentinel: Sentinel,
}

impl Watched {
    async fn start() -> Self {
        let user = format!("{MAY} +role");
        let master = Redis::start_with(&[&user]).await;
        let replica = Redis::start_replica_of(&master, &[&user]).await;
        let sentinel = Sentinel::watching(&master).await;
        let settings = [
            // The user of Redis; this Sentinel requires none.
            format!("redis.url={}", limited(&sentinel.url())),
            "redis.kind=sentinel".to_owned(),
            "redis.sentinel_master=limits".to_owned(),
        ];
        let fleet = Fleet::start(&settings).await;
        let caller = fleet.counts_together().await;
        is_copied(&master, &replica).await;
        Self { master, replica, fleet, caller, _sentinel: sentinel }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failover_by_a_quorum_is_followed_and_the_old_master_is_not_used() {
    let tls_files = TlsFiles::for_servers_at("localhost");
    let user = format!("{MAY} +role");
    let mut old = Redis::start_with_tls(&tls_files, &[&user, "replica-announce-ip localhost"]).await;
    let lines = [user.as_str()];
    let (one, other) = tokio::join!(Redis::start_replica_of(&old, &lines), Redis::start_replica_of(&old, &lines));
    let mut sentinels = Sentinel::three_watching(&old, ("asker", "open-sesame")).await;
    let urls: Vec<_> = sentinels.iter().map(|sentinel| limited(&sentinel.url())).collect();
    sentinels[0].kill();
    let settings = [
        format!("redis.url={}", urls.join(",")),
        "redis.kind=sentinel".to_owned(),
        "redis.sentinel_master=limits".to_owned(),
        "redis.sentinel_user=asker".to_owned(),
        "redis.sentinel_password=open-sesame".to_owned(),
    ];
    let fleet = Fleet::start(&[&settings[..], &tls_files.settings()].concat()).await;
    let caller = fleet.counts_together().await;
    is_copied(&old, &one).await;
    is_copied(&old, &other).await;

    let losses = fleet.losses();
    old.kill();
    fleet.nobody_waits().await;
    let (took, passed) = fleet.hammered_through_a_loss(&caller, losses).await;
    println!("Sentinels led to another master after {took:?}");
    fleet.is_limited_alone(passed);
    fleet.remembers(&caller).await;

    // The old master returns as master and is made a replica.
    old.restart().await;
    let demoted = async || (role(&old).await? == "slave").then_some(());
    eventually("it is a replica", demoted, || sentinels[1].log()).await;
    // After two failovers the first server is reconfigured a little later.
    let one_left = async || (role(&one).await? != role(&other).await?).then_some(());
    eventually("one of the others is the master", one_left, || sentinels[1].log()).await;
    fleet.remembers(&caller).await;
    for log in [fleet.one.log(), fleet.other.log()] {
        assert!(!log.contains("sesame"), "{log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn demoted_master_is_left_and_the_new_master_is_found() {
    let Watched { master, replica, fleet, caller, _sentinel } = Watched::start().await;
    let losses = fleet.losses();
    // It keeps its connections and answers READONLY.
    master.command::<()>(&["REPLICAOF", "127.0.0.1", &replica.port().to_string()]).await;
    let lost = async || (fleet.losses() >= losses + 2).then_some(());
    eventually("it is lost", lost, || fleet.one.log()).await;
    // Unless the answer came too late.
    let log = fleet.one.log();
    assert!(log.contains("ReadOnly") || log.contains("no answer in time"), "{log}");
    master.command::<()>(&["REPLICAOF", "NO", "ONE"]).await;
    fleet.remembers(&caller).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failover_keeps_the_counts() {
    let Watched { mut master, replica, fleet, caller, _sentinel } = Watched::start().await;
    master.kill();
    fleet.nobody_waits().await;
    fleet.says("down").await;
    fleet.remembers(&caller).await;
    assert_eq!(role(&replica).await.as_deref(), Some("master"));
}
