//! Kills control planes and PostgreSQL while clients write, and compares the database with what was acknowledged.

use super::ledger::{Target, assert_nothing_is_lost_or_doubled};
use countersign_tests::{ControlPlane, Postgres};
use std::time::Duration;

/// How often control planes are killed.
const KILLS: u64 = 20;

/// Time between two kills, which differs so that kills meet different phases of writes.
fn pause(round: u64) -> Duration {
    Duration::from_millis(50 + 40 * (round % 8))
}

#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_writes_survive_kills_of_the_control_plane_on_sqlite() {
    let mut control = ControlPlane::start_in(&[], &[]).await;
    let target = Target::of(&control);
    let faults = async {
        for round in 0..KILLS {
            tokio::time::sleep(pause(round)).await;
            control.kill_replica(0).await;
        }
    };
    assert_nothing_is_lost_or_doubled(target, faults).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_writes_survive_kills_of_replicas_and_postgresql() {
    let mut postgres = Postgres::start().await;
    let mut control = ControlPlane::start_pair(&postgres.create_database().await, [&[], &[]]).await;
    let target = Target::of(&control);
    let faults = async {
        for round in 0..KILLS {
            tokio::time::sleep(pause(round)).await;
            if round % 2 == 0 {
                postgres.kill();
                tokio::time::sleep(pause(round + 1)).await;
                postgres.restart().await;
            }
            control.kill_replica(usize::try_from(round % 2).unwrap()).await;
        }
    };
    assert_nothing_is_lost_or_doubled(target, faults).await;
}
