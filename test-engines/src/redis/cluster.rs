//! A Redis Cluster of three masters with one replica each.

use super::{Redis, TlsFiles};
use crate::process::eventually;
use futures_util::future::join_all;
use std::sync::Arc;

/// The number of masters. Nodes `0..MASTERS` are masters with a third of the slots each, and node `MASTERS + n` replicates node `n`.
const MASTERS: usize = 3;

/// Makes all nodes fail over quickly, even to a replica that lost its master long ago.
const FAST_FAILOVER: [&str; 3] =
    ["cluster-enabled yes", "cluster-node-timeout 1500", "cluster-replica-validity-factor 0"];

/// A cluster of six nodes.
pub struct RedisCluster {
    nodes: Vec<Redis>,
}

impl RedisCluster {
    /// Starts a cluster with additional configuration lines for each node.
    pub async fn start_with(lines: &[&str]) -> Self {
        Self::start_configured(lines, None).await
    }

    /// Starts a cluster that uses only TLS and announces `localhost` as host name.
    pub async fn start_with_tls(tls_files: &Arc<TlsFiles>) -> Self {
        let name = format!("cluster-announce-hostname {}", tls_files.host());
        let lines = ["tls-cluster yes", &name, "cluster-preferred-endpoint-type hostname"];
        Self::start_configured(&lines, Some(tls_files.clone())).await
    }

    async fn start_configured(lines: &[&str], tls_files: Option<Arc<TlsFiles>>) -> Self {
        let lines = [&FAST_FAILOVER[..], lines].concat();
        let nodes = join_all((0..2 * MASTERS).map(|_| Redis::start_node(&lines, tls_files.clone()))).await;
        let cluster = Self { nodes };
        cluster.form_cluster().await;
        cluster
    }

    async fn form_cluster(&self) {
        let share = 16384_usize.div_ceil(MASTERS);
        for (index, master) in self.nodes[..MASTERS].iter().enumerate() {
            let (first, last) = (share * index, (share * (index + 1)).min(16384) - 1);
            master.command::<()>(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()]).await;
            master.command::<()>(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()]).await;
        }
        for node in &self.nodes[1..] {
            let (port, bus_port) = (node.port.to_string(), node.bus_port.to_string());
            self.nodes[0].command::<()>(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus_port]).await;
        }
        self.wait_for_all("have completed the handshake", async |node| {
            let nodes: String = node.command(&["CLUSTER", "NODES"]).await;
            nodes.lines().count() == self.nodes.len() && !nodes.contains("handshake") && nodes.contains("16383")
        })
        .await;
        for (index, replica) in self.nodes[MASTERS..].iter().enumerate() {
            let id: String = self.nodes[index].command(&["CLUSTER", "MYID"]).await;
            replica.command::<()>(&["CLUSTER", "REPLICATE", &id]).await;
        }
        self.wait_for_all("have one replica for each master", async |node| {
            let nodes: String = node.command(&["CLUSTER", "NODES"]).await;
            let info: String = node.command(&["CLUSTER", "INFO"]).await;
            let replication: String = node.command(&["INFO", "replication"]).await;
            nodes.matches("slave").count() == MASTERS
                && info.contains("cluster_state:ok")
                && !replication.contains("master_link_status:down")
                && (replication.contains("connected_slaves:1") || replication.contains("role:slave"))
        })
        .await;
    }

    /// Waits until all nodes meet a condition.
    async fn wait_for_all(&self, state: &str, condition: impl AsyncFn(&Redis) -> bool) {
        for node in &self.nodes {
            let reached = async || condition(node).await.then_some(());
            eventually(&format!("the nodes {state}"), reached, || node.log()).await;
        }
    }

    /// A Redis URL that lists these nodes.
    pub fn url_of(&self, nodes: &[usize]) -> String {
        let urls: Vec<_> = nodes.iter().map(|node| self.nodes[*node].url()).collect();
        urls.join(",")
    }

    /// The nodes: initial masters, then their replicas in the same order.
    pub fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// Index of the master that serves the slot of a key, according to a node.
    pub async fn master_of(&self, key: &str, node: usize) -> Option<usize> {
        let slot: usize = self.nodes[node].command(&["CLUSTER", "KEYSLOT", key]).await;
        let nodes: String = self.nodes[node].command(&["CLUSTER", "NODES"]).await;
        let port = nodes.lines().find_map(|line| {
            // A line has the id, the address and the flags of a node, five other fields, then its ranges of slots.
            let fields: Vec<_> = line.split(' ').collect();
            let serves_slot =
                fields.get(8..)?.iter().any(|range| range_contains(range, slot)) && !fields[2].contains("fail");
            serves_slot.then(|| fields[1].split_once(':')?.1.split_once('@')?.0.parse::<u16>().ok())?
        })?;
        self.nodes.iter().position(|node| node.port == port)
    }

    /// Begins to migrate the slot of a key. Meanwhile, the source node responds ASK to requests for keys that it does not have.
    pub async fn begin_slot_migration(&self, key: &str, from: usize, to: usize) {
        let slot = self.slot(key).await;
        let (source, target) = (&self.nodes[from], &self.nodes[to]);
        let (source_id, target_id): (String, String) =
            (source.command(&["CLUSTER", "MYID"]).await, target.command(&["CLUSTER", "MYID"]).await);
        target.command::<()>(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source_id]).await;
        source.command::<()>(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target_id]).await;
    }

    /// Migrates the keys of the slot and assigns the slot to the target node.
    pub async fn finish_slot_migration(&self, key: &str, from: usize, to: usize) {
        let slot = self.slot(key).await;
        let (source, target) = (&self.nodes[from], &self.nodes[to]);
        let port = target.port.to_string();
        loop {
            let keys: Vec<String> = source.command(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"]).await;
            if keys.is_empty() {
                break;
            }
            let keys: Vec<_> = keys.iter().map(String::as_str).collect();
            // MIGRATE returns NOKEY for a key that has expired since the keys were listed.
            let arguments = [&["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"], &keys[..]].concat();
            source.command::<redis::Value>(&arguments).await;
        }
        let target_id: String = target.command(&["CLUSTER", "MYID"]).await;
        for node in [target, source].into_iter().chain(&self.nodes[..MASTERS]) {
            node.command::<()>(&["CLUSTER", "SETSLOT", &slot, "NODE", &target_id]).await;
        }
    }

    async fn slot(&self, key: &str) -> String {
        self.nodes[0].command::<i64>(&["CLUSTER", "KEYSLOT", key]).await.to_string()
    }

    /// Kills a node.
    pub fn kill(&mut self, node: usize) {
        self.nodes[node].kill();
    }

    /// The other node of a master and replica pair.
    pub const fn partner(node: usize) -> usize {
        (node + MASTERS) % (2 * MASTERS)
    }
}

fn range_contains(range: &str, slot: usize) -> bool {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let numbers = first.parse().ok().zip(last.parse().ok());
    numbers.is_some_and(|(first, last): (usize, usize)| (first..=last).contains(&slot))
}
