//! A cluster of three masters with one replica each: slots move, nodes hang and die, and the configured nodes are
//! down.

use super::{
    fixture::{Caller, Fleet, MOST, is_copied},
    places::{MAY, MAY_IN_A_CLUSTER, limited},
    wakes::listen,
};
use countersign_tests::{RedisCluster, TlsFiles, eventually};
use std::time::Duration;
use tokio_stream::StreamExt;

fn settings(url: &str) -> Vec<String> {
    vec![format!("redis.url={url}"), "redis.kind=cluster".to_owned()]
}

/// A key of the deployment. All its keys are in one slot.
async fn some_key(cluster: &RedisCluster) -> String {
    for node in cluster.nodes() {
        let keys: Vec<String> = node.command(&["KEYS", "*:proven:*"]).await;
        if let Some(key) = keys.into_iter().next() {
            return key;
        }
    }
    panic!("nothing is counted in the cluster");
}

/// Moves the slot of a key to a master.
async fn moved(cluster: &RedisCluster, key: &str, to: usize) {
    let from = cluster.master_of(key, 0).await.unwrap();
    if from != to {
        cluster.begin_slot_migration(key, from, to).await;
        cluster.finish_slot_migration(key, from, to).await;
    }
}

/// Number of sequential calls, alternating between the replicas, that are not limited.
async fn passed(fleet: &Fleet, caller: &Caller, calls: usize) -> usize {
    let mut passed = 0;
    for call in 0..calls {
        passed += usize::from(fleet.passes_at(caller, call).await);
    }
    passed
}

/// Waits until both replicas listen at these nodes and receive a message there.
async fn both_hear_at(cluster: &RedisCluster, fleet: &Fleet, key: &str, nodes: &[usize]) {
    let channel = format!("{}}}:changed", key.split_once('}').unwrap().0);
    let both = async || {
        let mut found = Vec::new();
        for node in nodes {
            let (_, listeners): (String, usize) = cluster.nodes()[*node].command(&["PUBSUB", "NUMSUB", &channel]).await;
            found.extend(std::iter::repeat_n(*node, listeners));
        }
        (found.len() == 2).then_some(found)
    };
    let at = eventually("both listen", both, || cluster.nodes()[nodes[0]].log()).await;
    let mut words = listen(&cluster.nodes()[at[0]], &channel).await;
    fleet.one.create_role(&format!("role-{nodes:?}"), &[]).await;
    let word = tokio::time::timeout(Duration::from_secs(20), words.next()).await;
    assert!(matches!(word, Ok(Some(_))), "{word:?}");
}

/// Maximum number of slot moves to get three undisturbed ones.
const MOVES: usize = 10;

#[tokio::test(flavor = "multi_thread")]
async fn counts_survive_slot_moves_and_messages_survive_a_hanging_node() {
    let user = format!("{MAY} {MAY_IN_A_CLUSTER}");
    let cluster = RedisCluster::start_with(&[&user, "cluster-require-full-coverage no"]).await;
    let fleet = Fleet::start(&settings(&limited(&cluster.url_of(&[0, 1])))).await;
    let mut caller = fleet.counts_together().await;
    let key = some_key(&cluster).await;
    let mut from = cluster.master_of(&key, 0).await.unwrap();
    let mut undisturbed = 0;
    for _ in 0..MOVES {
        let (losses, to) = (fleet.losses(), (from + 1) % 3);
        cluster.begin_slot_migration(&key, from, to).await;
        // Existing counts are at the source; new keys are redirected to the target (ASK).
        let newcomer = fleet.caller().await;
        let before = [passed(&fleet, &caller, 4).await, passed(&fleet, &newcomer, 10).await];
        cluster.finish_slot_migration(&key, from, to).await;
        // All keys are at the target (MOVED).
        let after = [passed(&fleet, &newcomer, MOST).await, passed(&fleet, &caller, 4).await];
        from = to;
        if fleet.losses() > losses {
            // On a busy machine a call may time out. Counts made while Redis was unreachable are discarded.
            caller = fleet.counts_together().await;
            continue;
        }
        assert_eq!((before, after), ([0, 10], [MOST - 10, 0]));
        undisturbed += 1;
        if undisturbed == 3 {
            break;
        }
    }
    assert_eq!(undisturbed, 3, "a move of a slot is no loss");
    fleet.counts_together().await;

    moved(&cluster, &key, 2).await;
    both_hear_at(&cluster, &fleet, &key, &[0]).await;
    cluster.nodes()[0].pause();
    both_hear_at(&cluster, &fleet, &key, &[1]).await;
    fleet.counts_together().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failover_is_followed_with_a_single_configured_node() {
    let tls_files = TlsFiles::for_servers_at("localhost");
    let mut cluster = RedisCluster::start_with_tls(&tls_files).await;
    let fleet = Fleet::start(&[&settings(&cluster.url_of(&[0]))[..], &tls_files.settings()].concat()).await;
    fleet.counts_together().await;
    let key = some_key(&cluster).await;
    moved(&cluster, &key, 0).await;
    let caller = fleet.counts_together().await;
    both_hear_at(&cluster, &fleet, &key, &[0]).await;
    is_copied(&cluster.nodes()[0], &cluster.nodes()[RedisCluster::partner(0)]).await;

    let losses = fleet.losses();
    cluster.kill(0);
    fleet.nobody_waits().await;
    let (took, passed) = fleet.hammered_through_a_loss(&caller, losses).await;
    println!("the cluster had another master after {took:?}");
    fleet.is_limited_alone(passed);
    fleet.remembers(&caller).await;
    assert_eq!(cluster.master_of(&key, 1).await, Some(RedisCluster::partner(0)));
    both_hear_at(&cluster, &fleet, &key, &[1, 2, 3, 4, 5]).await;
}
