//! The open connections of a port, and which of them closes when there are too many.
//!
//! Invariant: a connection is never closed for another one while this server works on a request of it. A connection that
//! has not sent a request yet is closed first, then an idle one, then one whose client neither sends the rest of its
//! request nor reads the response. The network with the most connections loses one first.

use super::{activity::Activity, metrics::ConnectionMetrics, network::Network};
use std::{
    cmp::Reverse,
    collections::HashMap,
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};
use tokio::sync::Notify;

/// How many descriptors are released at least when the process lacks them, unless half of the connections are fewer.
const DESCRIPTORS_TO_RELEASE: usize = 64;

/// A lack of descriptors leaves a port at least this number of connections, because it may have another cause.
const MIN_CONNECTIONS: usize = 64;

/// How many evicted connections may be open until no further connection is accepted.
const MAX_CLOSING: usize = 32;

/// How many connections a port may have.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionCaps {
    /// All open connections.
    pub total: usize,
    /// Connections of one client: an IPv4 address or an IPv6 /64 network.
    pub per_client: usize,
    /// Connections that have not sent a request yet.
    pub pending: usize,
}

/// The open connections of a port.
pub struct Connections {
    table: Mutex<Table>,
    next_id: AtomicU64,
    /// Notified when an evicted connection is closed.
    closed: Notify,
    metrics: ConnectionMetrics,
}

/// A connection in the table. Dropping it frees its place.
pub struct OpenConnection {
    connections: Arc<Connections>,
    id: u64,
    /// What happens on the connection.
    pub activity: Arc<Activity>,
}

/// Why a connection is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloseReason {
    /// The port has too many connections.
    Capacity,
    /// The client has too many connections.
    ClientCapacity,
    /// No request arrived in time.
    FirstRequestTimeout,
    /// No further request arrived in time.
    IdleTimeout,
    /// The client neither sent the rest of a request nor read a response in time.
    StallTimeout,
}

struct Table {
    configured: ConnectionCaps,
    /// The configured numbers, or lower ones after a lack of descriptors.
    caps: ConnectionCaps,
    /// Connections that were evicted and whose descriptors are not closed yet.
    closing: usize,
    /// Connections that have not sent a request yet.
    pending: HashMap<u64, Entry>,
    /// Connections that have sent a request.
    established: HashMap<u64, Entry>,
    by_client: HashMap<Network, usize>,
    by_site: HashMap<Network, usize>,
}

struct Entry {
    /// `None` for a trusted proxy and for a Unix socket, whose connections are counted only in total.
    address: Option<IpAddr>,
    activity: Arc<Activity>,
}

impl CloseReason {
    /// All values of the label `reason`.
    pub const ALL: [Self; 5] =
        [Self::Capacity, Self::ClientCapacity, Self::FirstRequestTimeout, Self::IdleTimeout, Self::StallTimeout];

    /// The value of the label `reason`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Capacity => "capacity",
            Self::ClientCapacity => "client_capacity",
            Self::FirstRequestTimeout => "first_request_timeout",
            Self::IdleTimeout => "idle_timeout",
            Self::StallTimeout => "stall_timeout",
        }
    }
}

impl Connections {
    /// An empty table.
    pub fn new(caps: ConnectionCaps, metrics: ConnectionMetrics) -> Self {
        metrics.set_max(caps.total);
        let table = Table {
            configured: caps,
            caps,
            closing: 0,
            pending: HashMap::new(),
            established: HashMap::new(),
            by_client: HashMap::new(),
            by_site: HashMap::new(),
        };
        Self { table: Mutex::new(table), next_id: AtomicU64::new(0), closed: Notify::new(), metrics }
    }

    /// Gives a new connection a place. If there is none, closes another connection for it. Returns `None` if no other
    /// connection may be closed for this one.
    pub fn admit(self: &Arc<Self>, address: Option<IpAddr>) -> Option<OpenConnection> {
        let mut table = self.table();
        if let Some(reason) = table.lacks_place_for(address) {
            self.metrics.closed(reason);
            let victim = table.victim_for(address, reason);
            table.evict(victim?);
        }
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let activity = Arc::new(Activity::default());
        table.insert(id, Entry { address, activity: activity.clone() });
        self.metrics.open.set(table.len_as_i64());
        drop(table);
        Some(OpenConnection { connections: self.clone(), id, activity })
    }

    /// Lowers the largest number of connections, because the process lacks file descriptors, and closes connections that wait
    /// for their clients. So descriptors remain for the database and the other ports. Returns the new number.
    pub fn reduce(&self) -> usize {
        let mut table = self.table();
        if table.closing > 0 {
            // Descriptors are about to be free.
            return table.caps.total;
        }
        let open = table.len();
        let total =
            open.saturating_sub(DESCRIPTORS_TO_RELEASE).max(open / 2).max(MIN_CONNECTIONS).min(table.caps.total);
        self.set_total(&mut table, total);
        while table.len() > total
            && let Some(victim) = table.victim_in(None)
        {
            table.evict(victim);
            self.metrics.closed(CloseReason::Capacity);
        }
        total
    }

    /// Doubles the largest number of connections, up to the configured number. Returns whether it is lower still.
    pub fn grow(&self) -> bool {
        let mut table = self.table();
        let configured = table.configured.total;
        let total = table.caps.total.saturating_mul(2).min(configured);
        self.set_total(&mut table, total);
        total < configured
    }

    fn set_total(&self, table: &mut Table, total: usize) {
        table.caps.total = total;
        table.caps.pending = table.configured.pending.min(total);
        self.metrics.set_max(total);
    }

    /// Waits until few evicted connections are still open, so that the process has not many more connections than allowed.
    pub async fn wait_for_evicted(&self) {
        loop {
            // Created before the check, so that no notification is missed.
            let closed = self.closed.notified();
            if self.table().closing < MAX_CLOSING {
                return;
            }
            closed.await;
        }
    }

    /// Counts a connection that ends because of its own behaviour.
    pub fn count_closed(&self, reason: CloseReason) {
        self.metrics.closed(reason);
    }

    /// Counts a failure to accept a connection.
    pub fn count_accept_error(&self) {
        self.metrics.accept_errors.inc();
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenConnection {
    /// Records the first request of the connection.
    pub fn establish(&self) {
        let mut table = self.connections.table();
        if let Some(entry) = table.pending.remove(&self.id) {
            table.established.insert(self.id, entry);
        }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        let mut table = self.connections.table();
        if table.remove(self.id).is_none() {
            table.closing = table.closing.saturating_sub(1);
            self.connections.closed.notify_waiters();
        }
        self.connections.metrics.open.set(table.len_as_i64());
    }
}

impl Table {
    fn len(&self) -> usize {
        self.pending.len() + self.established.len()
    }

    fn len_as_i64(&self) -> i64 {
        i64::try_from(self.len()).unwrap_or(i64::MAX)
    }

    fn lacks_place_for(&self, address: Option<IpAddr>) -> Option<CloseReason> {
        let of_client = address.and_then(|address| self.by_client.get(&Network::of_client(address)));
        if of_client.is_some_and(|count| *count >= self.caps.per_client) {
            return Some(CloseReason::ClientCapacity);
        }
        (self.len() >= self.caps.total || self.pending.len() >= self.caps.pending).then_some(CloseReason::Capacity)
    }

    fn victim_for(&self, address: Option<IpAddr>, reason: CloseReason) -> Option<u64> {
        match (reason, address) {
            (CloseReason::ClientCapacity, Some(address)) => {
                let client = Network::of_client(address);
                self.victim_in(Some(&|other| Network::of_client(other) == client))
            }
            _ if self.pending.len() >= self.caps.pending => self.pending_victim(),
            _ => {
                let greediest = self.by_site.iter().max_by_key(|(_, count)| **count).map(|(site, _)| *site);
                let of_greediest =
                    greediest.and_then(|site| self.victim_in(Some(&|other| Network::of_site(other) == site)));
                of_greediest.or_else(|| self.victim_in(None))
            }
        }
    }

    /// The oldest pending connection of the site with the most pending connections.
    fn pending_victim(&self) -> Option<u64> {
        let site_of = |entry: &Entry| entry.address.map(Network::of_site);
        let mut by_site: HashMap<Option<Network>, usize> = HashMap::new();
        for entry in self.pending.values() {
            *by_site.entry(site_of(entry)).or_default() += 1;
        }
        let greediest = by_site.into_iter().max_by_key(|(_, count)| *count)?.0;
        self.pending.iter().filter(|(_, entry)| site_of(entry) == greediest).map(|(id, _)| *id).min()
    }

    /// The connection to close among those of some addresses: the oldest pending one, or else the one that has waited for
    /// its client for the longest time.
    fn victim_in(&self, includes: Option<&dyn Fn(IpAddr) -> bool>) -> Option<u64> {
        let is_candidate = |entry: &Entry| includes.is_none_or(|includes| entry.address.is_some_and(includes));
        let pending = self.pending.iter().filter(|(_, entry)| is_candidate(entry)).map(|(id, _)| *id).min();
        pending.or_else(|| {
            let established = self.established.iter().filter(|(_, entry)| is_candidate(entry));
            let evictable = established.filter_map(|(id, entry)| Some((entry.activity.eviction_rank()?, *id)));
            evictable.max_by_key(|(rank, id)| (*rank, Reverse(*id))).map(|(_, id)| id)
        })
    }

    fn evict(&mut self, id: u64) {
        if let Some(evicted) = self.remove(id) {
            evicted.activity.evict();
            self.closing += 1;
        }
    }

    fn insert(&mut self, id: u64, entry: Entry) {
        if let Some(address) = entry.address {
            *self.by_client.entry(Network::of_client(address)).or_default() += 1;
            *self.by_site.entry(Network::of_site(address)).or_default() += 1;
        }
        self.pending.insert(id, entry);
    }

    fn remove(&mut self, id: u64) -> Option<Entry> {
        let entry = self.pending.remove(&id).or_else(|| self.established.remove(&id))?;
        if let Some(address) = entry.address {
            decrement(&mut self.by_client, Network::of_client(address));
            decrement(&mut self.by_site, Network::of_site(address));
        }
        Some(entry)
    }
}

fn decrement(counts: &mut HashMap<Network, usize>, network: Network) {
    if let Some(count) = counts.get_mut(&network) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&network);
        }
    }
}

#[cfg(test)]
mod tests;
