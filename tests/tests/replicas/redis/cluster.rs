//! Tests with a cluster of three masters with one replica each, in which slots move, nodes hang or are killed, and
//! the configured nodes are down.

use super::{
    change_messages::subscribe,
    fixture::{Caller, Fleet, LIMIT, wait_for_replication},
    users::{CLUSTER_PERMISSIONS, USER_ACL, redis_url, url_with_user},
};
use countersign_tests::{RedisCluster, TlsFiles, eventually};
use std::time::Duration;
use tokio_stream::StreamExt;

/// The key of a counter. All Redis keys of a Countersign deployment are in one slot.
async fn counter_key(cluster: &RedisCluster) -> String {
    for node in cluster.nodes() {
        let keys: Vec<String> = node.command(&["KEYS", "*:proven:*"]).await;
        if let Some(key) = keys.into_iter().next() {
            return key;
        }
    }
    panic!("the cluster has no counter");
}

/// Moves the slot of a key to a master.
async fn move_slot(cluster: &RedisCluster, key: &str, target: usize) {
    let from = cluster.master_of(key, 0).await.unwrap();
    if from != target {
        cluster.begin_slot_migration(key, from, target).await;
        cluster.finish_slot_migration(key, from, target).await;
    }
}

/// Number of sequential calls, alternating between the replicas, that are not limited.
async fn count_passed(fleet: &Fleet, caller: &Caller, calls: usize) -> usize {
    let mut passed = 0;
    for call in 0..calls {
        passed += usize::from(fleet.passes_at(caller, call).await);
    }
    passed
}

/// Waits until both replicas are subscribed at this node, and receive a message there.
async fn wait_for_subscriptions_at(cluster: &RedisCluster, fleet: &Fleet, key: &str, node: usize) {
    let channel = format!("{}}}:changed", key.split_once('}').unwrap().0);
    let node = &cluster.nodes()[node];
    let both_subscribed = async || {
        let subscribers = node.try_command(&["PUBSUB", "NUMSUB", &channel]).await;
        let (_, subscribers): (String, usize) = subscribers.ok()?;
        (subscribers == 2).then_some(())
    };
    eventually("both replicas subscribe", both_subscribed, || node.log()).await;
    let mut messages = subscribe(node, &channel).await;
    fleet.first.create_role(&format!("role-{}", node.port()), &[]).await;
    let message = tokio::time::timeout(Duration::from_secs(20), messages.next()).await;
    assert!(matches!(message, Ok(Some(_))), "{message:?}");
}

/// Maximum number of slot moves; during three of them, no replica may lose Redis.
const MAX_SLOT_MOVES: usize = 10;

#[tokio::test(flavor = "multi_thread")]
async fn counts_survive_slot_moves_and_messages_survive_a_hanging_node() {
    let user = format!("{USER_ACL} {CLUSTER_PERMISSIONS}");
    let cluster = RedisCluster::start_with(&[&user, "cluster-require-full-coverage no"]).await;
    let fleet = Fleet::start(&[redis_url(&url_with_user(&cluster.url_of(&[0, 1])), "+cluster", &[])]).await;
    let mut caller = fleet.assert_counted_together().await;
    let key = counter_key(&cluster).await;
    let mut from = cluster.master_of(&key, 0).await.unwrap();
    let mut undisturbed = 0;
    for _ in 0..MAX_SLOT_MOVES {
        let (losses, to) = (fleet.losses(), (from + 1) % 3);
        cluster.begin_slot_migration(&key, from, to).await;
        // During the migration of a slot, the source node has the existing counts of the slot, and redirects requests for
        // new keys to the target node with the error ASK.
        let new_caller = fleet.caller().await;
        let before = [count_passed(&fleet, &caller, 4).await, count_passed(&fleet, &new_caller, 10).await];
        cluster.finish_slot_migration(&key, from, to).await;
        // After a slot migration, all keys are at the target node of the slot (MOVED).
        let after = [count_passed(&fleet, &new_caller, LIMIT).await, count_passed(&fleet, &caller, 4).await];
        from = to;
        if fleet.losses() > losses {
            // On a busy machine a call may time out. Counts of calls that were made while Redis was unreachable are discarded.
            caller = fleet.assert_counted_together().await;
            continue;
        }
        assert_eq!((before, after), ([0, 10], [LIMIT - 10, 0]));
        undisturbed += 1;
        if undisturbed == 3 {
            break;
        }
    }
    assert_eq!(undisturbed, 3, "a slot move is not logged as a loss of Redis");
    fleet.assert_counted_together().await;

    move_slot(&cluster, &key, 2).await;
    wait_for_subscriptions_at(&cluster, &fleet, &key, 2).await;
    cluster.nodes()[2].pause();
    wait_for_subscriptions_at(&cluster, &fleet, &key, RedisCluster::partner(2)).await;
    fleet.assert_counted_together().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failover_is_followed_with_a_single_configured_node() {
    let tls_files = TlsFiles::create("localhost");
    let mut cluster = RedisCluster::start_with_tls(&tls_files).await;
    let fleet = Fleet::start(&[redis_url(&cluster.url_of(&[0]), "+cluster", &tls_files.parameters())]).await;
    fleet.assert_counted_together().await;
    let key = counter_key(&cluster).await;
    move_slot(&cluster, &key, 0).await;
    let caller = fleet.assert_counted_together().await;
    wait_for_subscriptions_at(&cluster, &fleet, &key, 0).await;
    wait_for_replication(&cluster.nodes()[0], &cluster.nodes()[RedisCluster::partner(0)]).await;

    let losses = fleet.losses();
    cluster.kill(0);
    fleet.assert_no_request_waits().await;
    let (duration, passed) = fleet.call_until_reconnected(&caller, losses).await;
    println!("the replicas reconnected to the new master after {duration:?}");
    fleet.assert_limited_per_replica(passed);
    fleet.assert_limit_exhausted(&caller).await;
    assert_eq!(cluster.master_of(&key, 1).await, Some(RedisCluster::partner(0)));
    wait_for_subscriptions_at(&cluster, &fleet, &key, RedisCluster::partner(0)).await;
}
