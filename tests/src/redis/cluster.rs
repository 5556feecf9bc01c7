//! A cluster: three masters, and a replica of each.

use super::{Redis, TlsFiles};
use crate::process::eventually;
use futures_util::future::join_all;
use std::sync::Arc;

/// Masters, each with a third of the slots. After them come as many replicas, in the same order.
const MASTERS: usize = 3;

/// What all nodes are told: who is silent for so long is given up, however long its replica was without it.
const QUICK: [&str; 3] = ["cluster-enabled yes", "cluster-node-timeout 1500", "cluster-replica-validity-factor 0"];

/// A cluster of six nodes, some of which may have been killed.
pub struct RedisCluster {
    nodes: Vec<Redis>,
}

impl RedisCluster {
    /// Starts it with lines of configuration for each node.
    pub async fn start_with(lines: &[&str]) -> Self {
        Self::begin(lines, None).await
    }

    /// Starts one that speaks TLS only, and calls its nodes `localhost`.
    pub async fn start_with_tls(tls_files: &Arc<TlsFiles>) -> Self {
        let name = format!("cluster-announce-hostname {}", tls_files.host());
        let lines = ["tls-cluster yes", &name, "cluster-preferred-endpoint-type hostname"];
        Self::begin(&lines, Some(tls_files.clone())).await
    }

    async fn begin(lines: &[&str], tls_files: Option<Arc<TlsFiles>>) -> Self {
        let lines = [&QUICK[..], lines].concat();
        let nodes = join_all((0..2 * MASTERS).map(|_| Redis::start_node(&lines, tls_files.clone()))).await;
        let cluster = Self { nodes };
        cluster.gather().await;
        cluster
    }

    async fn gather(&self) {
        let share = 16384_usize.div_ceil(MASTERS);
        for (place, master) in self.nodes[..MASTERS].iter().enumerate() {
            let (first, last) = (share * place, (share * (place + 1)).min(16384) - 1);
            master.command::<()>(&["CLUSTER", "SET-CONFIG-EPOCH", &(place + 1).to_string()]).await;
            master.command::<()>(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()]).await;
        }
        for node in &self.nodes[1..] {
            let (port, bus) = (node.port.to_string(), node.bus.to_string());
            self.nodes[0].command::<()>(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]).await;
        }
        self.all("know each other", async |node| {
            let known: String = node.command(&["CLUSTER", "NODES"]).await;
            known.lines().count() == self.nodes.len() && !known.contains("handshake") && known.contains("16383")
        })
        .await;
        for (place, replica) in self.nodes[MASTERS..].iter().enumerate() {
            let id: String = self.nodes[place].command(&["CLUSTER", "MYID"]).await;
            replica.command::<()>(&["CLUSTER", "REPLICATE", &id]).await;
        }
        self.all("are whole", async |node| {
            let known: String = node.command(&["CLUSTER", "NODES"]).await;
            let state: String = node.command(&["CLUSTER", "INFO"]).await;
            let copies: String = node.command(&["INFO", "replication"]).await;
            known.matches("slave").count() == MASTERS
                && state.contains("cluster_state:ok")
                && !copies.contains("master_link_status:down")
                && (copies.contains("connected_slaves:1") || copies.contains("role:slave"))
        })
        .await;
    }

    /// Waits until this is so of each node.
    async fn all(&self, what: &str, is_so: impl AsyncFn(&Redis) -> bool) {
        for node in &self.nodes {
            let so = async || is_so(node).await.then_some(());
            eventually(&format!("the nodes {what}"), so, || node.log()).await;
        }
    }

    /// The URL that names these nodes.
    pub fn url_of(&self, nodes: &[usize]) -> String {
        let urls: Vec<_> = nodes.iter().map(|node| self.nodes[*node].url()).collect();
        urls.join(",")
    }

    /// Masters as it was started, and then their replicas in the same order.
    pub fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// Which node is the master of a key, as this one says it.
    pub async fn master_of(&self, key: &str, asked: usize) -> Option<usize> {
        let slot: usize = self.nodes[asked].command(&["CLUSTER", "KEYSLOT", key]).await;
        let known: String = self.nodes[asked].command(&["CLUSTER", "NODES"]).await;
        let port = known.lines().find_map(|line| {
            let words: Vec<_> = line.split(' ').collect();
            let has_it = words.get(8..)?.iter().any(|range| contains(range, slot)) && !words[2].contains("fail");
            has_it.then(|| words[1].split_once(':')?.1.split_once('@')?.0.parse::<u16>().ok())?
        })?;
        self.nodes.iter().position(|node| node.port == port)
    }

    /// Begins to move the slot of a key from one master to another: what is not there yet is asked for at the other.
    pub async fn begin_to_move(&self, key: &str, from: usize, to: usize) {
        let slot = self.slot(key).await;
        let (source, target) = (&self.nodes[from], &self.nodes[to]);
        let (old, new): (String, String) =
            (source.command(&["CLUSTER", "MYID"]).await, target.command(&["CLUSTER", "MYID"]).await);
        target.command::<()>(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &old]).await;
        source.command::<()>(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &new]).await;
    }

    /// Moves the keys of the slot, and then the slot itself.
    pub async fn end_the_move(&self, key: &str, from: usize, to: usize) {
        let slot = self.slot(key).await;
        let (source, target) = (&self.nodes[from], &self.nodes[to]);
        let port = target.port.to_string();
        loop {
            let keys: Vec<String> = source.command(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"]).await;
            if keys.is_empty() {
                break;
            }
            let keys: Vec<_> = keys.iter().map(String::as_str).collect();
            // Of one that is over by now it says so, and goes on.
            let words = [&["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"], &keys[..]].concat();
            source.command::<redis::Value>(&words).await;
        }
        let new: String = target.command(&["CLUSTER", "MYID"]).await;
        for node in [target, source].into_iter().chain(&self.nodes[..MASTERS]) {
            node.command::<()>(&["CLUSTER", "SETSLOT", &slot, "NODE", &new]).await;
        }
    }

    async fn slot(&self, key: &str) -> String {
        self.nodes[0].command::<i64>(&["CLUSTER", "KEYSLOT", key]).await.to_string()
    }

    /// Ends a node at once, as a crash would.
    pub fn kill(&mut self, node: usize) {
        self.nodes[node].kill();
    }

    /// Another that was a master's replica when it was started, or the other way round.
    pub const fn partner(node: usize) -> usize {
        (node + MASTERS) % (2 * MASTERS)
    }
}

fn contains(range: &str, slot: usize) -> bool {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let numbers = first.parse().ok().zip(last.parse().ok());
    numbers.is_some_and(|(first, last): (usize, usize)| (first..=last).contains(&slot))
}
