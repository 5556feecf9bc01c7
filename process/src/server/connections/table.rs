//! Which connections are open, and which of them closes for a new one.

use super::{
    CloseReason, ConnectionCaps,
    full_port::LoggedLines,
    sites::{Site, SiteCounts},
};
use crate::server::{activity::Activity, network::Network};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    ops::RangeInclusive,
    sync::Arc,
};

/// How many connections more than the site of a new connection a site must have, so that one of them yields. With one more, the
/// two sites would only change places.
const MIN_EXCESS: usize = 2;

/// The key of a connection: connections are ordered by site, and then by age.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ConnectionKey {
    site: Site,
    id: u64,
}

impl ConnectionKey {
    /// The key of the connection with this number, which no other connection has.
    pub(super) fn new(id: u64, address: Option<IpAddr>) -> Self {
        Self { site: address.map(Network::of_site), id }
    }

    /// The keys of all connections of a site.
    const fn all_of(site: Site) -> RangeInclusive<Self> {
        Self { site, id: 0 }..=Self { site, id: u64::MAX }
    }
}

/// An open connection.
pub(super) struct Entry {
    /// `None` for a trusted proxy and for a Unix socket, whose connections are counted only in total.
    pub(super) address: Option<IpAddr>,
    pub(super) activity: Arc<Activity>,
}

impl Entry {
    fn client(&self) -> Option<Network> {
        self.address.map(Network::of_client)
    }
}

/// The open connections of a port.
pub(super) struct Table {
    configured: ConnectionCaps,
    /// The configured numbers, or lower ones after a lack of descriptors.
    caps: ConnectionCaps,
    /// Whether a connection may close although this server works on a request of it, because clients resume their streams.
    streams_resume: bool,
    /// Connections that were evicted and whose descriptors are not closed yet.
    pub(super) closing: usize,
    /// Connections that have not sent a request yet.
    pub(super) pending: BTreeMap<ConnectionKey, Entry>,
    /// Connections that have sent a request.
    pub(super) established: BTreeMap<ConnectionKey, Entry>,
    pub(super) by_client: HashMap<Network, usize>,
    /// All connections with an address.
    pub(super) by_site: SiteCounts,
    pub(super) pending_by_site: SiteCounts,
    pub(super) logged: LoggedLines,
}

impl Table {
    pub(super) fn new(caps: ConnectionCaps, streams_resume: bool) -> Self {
        Self {
            configured: caps,
            caps,
            streams_resume,
            closing: 0,
            pending: BTreeMap::new(),
            established: BTreeMap::new(),
            by_client: HashMap::new(),
            by_site: SiteCounts::default(),
            pending_by_site: SiteCounts::default(),
            logged: LoggedLines::default(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.pending.len() + self.established.len()
    }

    /// The largest number of connections.
    pub(super) const fn max(&self) -> usize {
        self.caps.total
    }

    /// The largest number of connections that have not sent a request yet.
    pub(super) const fn max_pending(&self) -> usize {
        self.caps.pending
    }

    pub(super) const fn configured_max(&self) -> usize {
        self.configured.total
    }

    pub(super) fn set_max(&mut self, total: usize) {
        self.caps.total = total;
        self.caps.pending = self.configured.pending.min(total);
    }

    /// Why there is no place for another connection.
    pub(super) fn lacks_place_for(&self, address: Option<IpAddr>) -> Option<CloseReason> {
        let of_client = address.and_then(|address| self.by_client.get(&Network::of_client(address)));
        if of_client.is_some_and(|count| *count >= self.caps.per_client) {
            return Some(CloseReason::ClientCapacity);
        }
        (self.len() >= self.caps.total || self.pending.len() >= self.caps.pending).then_some(CloseReason::Capacity)
    }

    /// Closes a connection for a new one. Returns whether one could be closed.
    pub(super) fn close_for(&mut self, address: Option<IpAddr>, reason: CloseReason) -> bool {
        let closable = match (reason, address) {
            (CloseReason::ClientCapacity, Some(address)) => {
                self.closable_of(Some(Network::of_site(address)), Some(Network::of_client(address)))
            }
            _ if self.pending.len() >= self.caps.pending => self.oldest_pending(),
            _ => self.closable(),
        };
        let is_full = reason == CloseReason::Capacity;
        let yielding = || self.yielding_to(address).filter(|_| self.streams_resume && is_full);
        match closable {
            Some(key) => self.evict(key, Activity::evict),
            None => yielding().is_some_and(|key| self.evict(key, Activity::yield_place)),
        }
    }

    /// Closes a connection that waits for its client. Returns whether there was one.
    pub(super) fn close_one(&mut self) -> bool {
        self.closable().is_some_and(|key| self.evict(key, Activity::evict))
    }

    /// Adds a connection that has not sent a request yet.
    pub(super) fn insert(&mut self, key: ConnectionKey, entry: Entry) {
        if let Some(client) = entry.client() {
            *self.by_client.entry(client).or_default() += 1;
            self.by_site.add(key.site);
        }
        self.pending_by_site.add(key.site);
        self.pending.insert(key, entry);
    }

    /// Records the first request of a connection.
    pub(super) fn establish(&mut self, key: ConnectionKey) {
        if let Some(entry) = self.pending.remove(&key) {
            self.pending_by_site.remove(key.site);
            self.established.insert(key, entry);
        }
    }

    /// Removes a connection. Returns `None` if it was evicted before.
    pub(super) fn remove(&mut self, key: ConnectionKey) -> Option<Entry> {
        let entry = match self.pending.remove(&key) {
            Some(pending) => {
                self.pending_by_site.remove(key.site);
                pending
            }
            None => self.established.remove(&key)?,
        };
        if let Some(client) = entry.client() {
            decrement(&mut self.by_client, client);
            self.by_site.remove(key.site);
        }
        Some(entry)
    }

    fn evict(&mut self, key: ConnectionKey, tell: fn(&Activity)) -> bool {
        let evicted = self.remove(key);
        if let Some(entry) = &evicted {
            tell(&entry.activity);
            self.closing += 1;
        }
        evicted.is_some()
    }

    /// The connection to close among all.
    fn closable(&self) -> Option<ConnectionKey> {
        let of_greediest = self.by_site.greediest().and_then(|site| self.closable_of(site, None));
        of_greediest.or_else(|| self.oldest_pending()).or_else(|| longest_waiting(self.established.iter()))
    }

    /// The connection to close among those of a site, or of a client of the site: the oldest pending one, or else the one that
    /// has waited for its client for the longest time.
    fn closable_of(&self, site: Site, client: Option<Network>) -> Option<ConnectionKey> {
        let is_included = |(_, entry): &(&ConnectionKey, &Entry)| client.is_none() || entry.client() == client;
        let mut pending = self.pending.range(ConnectionKey::all_of(site)).filter(is_included);
        let established = || self.established.range(ConnectionKey::all_of(site)).filter(is_included);
        pending.next().map(|(key, _)| *key).or_else(|| longest_waiting(established()))
    }

    /// The oldest pending connection of the site with the most pending connections.
    fn oldest_pending(&self) -> Option<ConnectionKey> {
        let greediest = self.pending_by_site.greediest()?;
        self.pending.range(ConnectionKey::all_of(greediest)).next().map(|(key, _)| *key)
    }

    /// The connection that closes for a new one although this server works on a request of it. `None` if no other block and no
    /// other site of its own block has more connections than the new one has.
    fn yielding_to(&self, address: Option<IpAddr>) -> Option<ConnectionKey> {
        let site = address.map(Network::of_site);
        let (of_site, of_block) = if site.is_some() {
            (self.by_site.of_site(site), self.by_site.of_block(site))
        } else {
            // All clients without an address count as one.
            let count = self.len() - self.by_site.total();
            (count, count)
        };
        let greediest = self.by_site.greediest()?;
        if self.by_site.of_block(greediest) >= of_block + MIN_EXCESS {
            return self.newest_of_greediest_client(greediest);
        }
        let neighbour = self.by_site.greediest_near(site)?;
        let has_more = self.by_site.of_site(neighbour) >= of_site + MIN_EXCESS;
        has_more.then(|| self.newest_of_greediest_client(neighbour)).flatten()
    }

    /// The newest connection of the client with the most in a site. Older streams of honest clients continue.
    fn newest_of_greediest_client(&self, site: Site) -> Option<ConnectionKey> {
        let mut clients: HashMap<Option<Network>, (usize, ConnectionKey)> = HashMap::new();
        for (key, entry) in self.established.range(ConnectionKey::all_of(site)) {
            let (count, newest) = clients.entry(entry.client()).or_insert((0, *key));
            (*count, *newest) = (*count + 1, *key);
        }
        clients.into_values().max().map(|(_, newest)| newest)
    }
}

/// The connection that has waited for its client for the longest time; the oldest of several.
fn longest_waiting<'a>(entries: impl Iterator<Item = (&'a ConnectionKey, &'a Entry)>) -> Option<ConnectionKey> {
    let waiting = entries.filter_map(|(key, entry)| Some((entry.activity.eviction_rank()?, key)));
    waiting.max_by_key(|(rank, key)| (*rank, Reverse(key.id))).map(|(_, key)| *key)
}

fn decrement(counts: &mut HashMap<Network, usize>, network: Network) {
    if let Some(count) = counts.get_mut(&network) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&network);
        }
    }
}
