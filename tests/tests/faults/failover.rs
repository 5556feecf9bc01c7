//! A failover of PostgreSQL while clients write: two servers with synchronous replication, managed by Patroni.

use super::ledger::{Target, assert_nothing_is_lost_or_doubled};
use countersign_process::{Clock, SystemClock};
use countersign_tests::{ControlPlane, PatroniCluster};
use serde_json::json;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_writes_survive_a_failover_of_postgresql() {
    let mut cluster = PatroniCluster::start().await;
    let control = ControlPlane::start_pair(&cluster.url(), [&[], &[]]).await;
    let faults = async {
        for _ in 0..failovers() {
            tokio::time::sleep(Duration::from_millis(300)).await;
            let killed = cluster.kill_primary().await;
            let since = SystemClock.since_boot();
            wait_until_writes_pass(&control).await;
            println!(
                "writes passed {:.1?} after the primary was killed",
                SystemClock.since_boot().saturating_sub(since)
            );
            cluster.restart(killed).await;
        }
    };
    assert_nothing_is_lost_or_doubled(Target::of(&control), faults).await;
}

/// The number of failovers, which `FAILOVERS` sets. Each takes half a minute.
fn failovers() -> u32 {
    std::env::var("FAILOVERS").map_or(1, |count| count.parse().unwrap())
}

async fn wait_until_writes_pass(control: &ControlPlane) {
    let name = format!("probe-{}", SystemClock.now().micros());
    let request = || {
        let body = json!({ "name": name, "permissions": [] });
        control.api.request("POST", &control.path("/roles")).bearer_auth(control.key()).json(&body)
    };
    // The status 409 means that an earlier attempt was committed.
    while !request().send().await.is_ok_and(|response| [201, 409].contains(&response.status().as_u16())) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
