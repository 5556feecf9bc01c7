//! Tests with a single Sentinel, and with three Sentinels with authentication and TLS, one of which is down.

use super::{
    fixture::{Fleet, wait_for_replication},
    users::{USER_ACL, redis_url, url_with_user},
};
use countersign_tests::{Redis, Sentinel, TlsFiles, eventually};

/// The current role of a server; `None` if a Sentinel changes the role during the query, which closes the connection.
async fn role(redis: &Redis) -> Option<String> {
    let info: String = redis.try_command(&["INFO", "replication"]).await.ok()?;
    Some(info.lines().find_map(|line| line.strip_prefix("role:"))?.trim().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn failover_by_a_quorum_is_followed_and_the_old_master_is_not_used() {
    let tls_files = TlsFiles::create("localhost");
    let user = format!("{USER_ACL} +role");
    let mut old_master = Redis::start_with_tls(&tls_files, &[&user, "replica-announce-ip localhost"]).await;
    let acl = [user.as_str()];
    let (first_replica, second_replica) =
        tokio::join!(Redis::start_replica_of(&old_master, &acl), Redis::start_replica_of(&old_master, &acl));
    let mut sentinels = Sentinel::start_three(&old_master, ("sentinel-client", "open-sesame")).await;
    let urls: Vec<_> = sentinels.iter().map(|sentinel| url_with_user(&sentinel.url())).collect();
    sentinels[0].kill();
    let sentinel = ["master=limits", "sentinel_user=sentinel-client", "sentinel_password=open-sesame"];
    let parameters = [&sentinel.map(str::to_owned)[..], &tls_files.parameters()].concat();
    let fleet = Fleet::start(&[redis_url(&urls.join(","), "+sentinel", &parameters)]).await;
    let caller = fleet.assert_counted_together().await;
    wait_for_replication(&old_master, &first_replica).await;
    wait_for_replication(&old_master, &second_replica).await;

    let losses = fleet.losses();
    old_master.kill();
    fleet.assert_no_request_waits().await;
    let (duration, passed) = fleet.call_until_reconnected(&caller, losses).await;
    println!("the replicas reconnected to the new master after {duration:?}");
    fleet.assert_limited_per_replica(passed);
    fleet.assert_limit_exhausted(&caller).await;

    // The old master restarts as a master, and the Sentinels make it a replica.
    old_master.restart().await;
    let demoted = async || (role(&old_master).await? == "slave").then_some(());
    eventually("the old master is a replica", demoted, || sentinels[1].log()).await;
    // If the Sentinels fail over twice, both replicas are masters until the Sentinels make the first of them a replica.
    let replica_promoted = async || (role(&first_replica).await? != role(&second_replica).await?).then_some(());
    eventually("one of the replicas is the master", replica_promoted, || sentinels[1].log()).await;
    fleet.assert_limit_exhausted(&caller).await;
    for log in [fleet.first.log(), fleet.second.log()] {
        assert!(!log.contains("sesame"), "{log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_reconnect_to_a_master_after_a_demotion() {
    let user = format!("{USER_ACL} +role");
    let master = Redis::start_with(&[&user]).await;
    let replica = Redis::start_replica_of(&master, &[&user]).await;
    let sentinel = Sentinel::start(&master).await;
    // The URL contains the credentials of the Redis user, because this Sentinel requires no authentication.
    let url = redis_url(&url_with_user(&sentinel.url()), "+sentinel", &["master=limits".to_owned()]);
    let fleet = Fleet::start(&[url]).await;
    let caller = fleet.assert_counted_together().await;
    wait_for_replication(&master, &replica).await;
    let losses = fleet.losses();
    // A demoted Redis master keeps its connections and returns READONLY.
    master.command::<()>(&["REPLICAOF", "127.0.0.1", &replica.port().to_string()]).await;
    let both_lost = async || (fleet.losses() >= losses + 2).then_some(());
    eventually("both replicas lose the connection", both_lost, || fleet.first.log()).await;
    // The control plane logs `timed out` if READONLY arrives after the timeout.
    let log = fleet.first.log();
    assert!(log.contains("ReadOnly") || log.contains("timed out"), "{log}");
    master.command::<()>(&["REPLICAOF", "NO", "ONE"]).await;
    fleet.assert_limit_exhausted(&caller).await;
}
