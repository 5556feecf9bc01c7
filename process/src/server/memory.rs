//! Memory that the clients of a port share.
//!
//! Invariant: a client and its site get memory only while a multiple of what they then have is free. So something remains for
//! others, whose shares are smaller. Reserving takes no lock and allocates nothing.

use super::network::Network;
use prometheus::IntCounter;
use std::{
    hash::{BuildHasher as _, RandomState},
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

/// The number of counters. Clients with the same hash share a counter, which makes their shares smaller.
const COUNTERS: usize = 1 << 12;

/// How often the memory of a client or of a site must be free in addition when it gets more.
#[derive(Debug, Clone, Copy)]
pub struct Shares {
    /// With 3, one client gets at most a quarter.
    pub client: usize,
    /// With 1, one site gets at most half. With 0, a site has no share of its own.
    pub site: usize,
}

/// Memory that the clients of a port share.
pub struct SharedMemory {
    capacity: usize,
    shares: Shares,
    used: AtomicUsize,
    used_by_client: Box<[AtomicUsize]>,
    used_by_site: Box<[AtomicUsize]>,
    /// Has random keys, so that a client cannot choose with whom it shares a counter.
    hasher: RandomState,
    /// Counts the requests that get no memory.
    refused: IntCounter,
}

/// Memory of one request. Dropping it frees the memory.
pub struct ReservedMemory {
    memory: Arc<SharedMemory>,
    /// The counters of the client and of its site; `None` for a Unix socket.
    counters: Option<(usize, usize)>,
    bytes: usize,
}

impl SharedMemory {
    /// Memory of `capacity` bytes. `refused` counts the requests that get no memory.
    pub fn new(capacity: usize, shares: Shares, refused: IntCounter) -> Self {
        let counters = || (0..COUNTERS).map(|_| AtomicUsize::new(0)).collect();
        Self {
            capacity,
            shares,
            used: AtomicUsize::new(0),
            used_by_client: counters(),
            used_by_site: counters(),
            hasher: RandomState::new(),
            refused,
        }
    }

    /// Reserves memory for a request of a client. `None` if there is none for the client.
    pub fn reserve(self: &Arc<Self>, address: Option<IpAddr>, bytes: usize) -> Option<ReservedMemory> {
        let counters = |address| (self.counter(Network::of_client(address)), self.counter(Network::of_site(address)));
        let mut reserved = ReservedMemory { memory: Arc::clone(self), counters: address.map(counters), bytes: 0 };
        reserved.grow(bytes).then_some(reserved)
    }

    fn counter(&self, network: Network) -> usize {
        let hash = self.hasher.hash_one(network) % COUNTERS as u64;
        usize::try_from(hash).unwrap_or_default()
    }
}

impl ReservedMemory {
    /// The reserved bytes.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Reserves more bytes for the request. Returns whether there are as many for its client.
    #[must_use]
    pub fn grow(&mut self, bytes: usize) -> bool {
        let memory = &self.memory;
        let take = |counter: &AtomicUsize| counter.fetch_add(bytes, Relaxed) + bytes;
        self.bytes += bytes;
        let free = memory.capacity.checked_sub(take(&memory.used));
        let (by_client, by_site) = self
            .counters
            .map_or((0, 0), |(client, site)| (take(&memory.used_by_client[client]), take(&memory.used_by_site[site])));
        let Shares { client, site } = memory.shares;
        let fits = free.is_some_and(|free| client * by_client <= free && site * by_site <= free);
        if !fits {
            memory.refused.inc();
            self.release(bytes);
        }
        fits
    }

    fn release(&mut self, bytes: usize) {
        self.bytes -= bytes;
        let give_back = |counter: &AtomicUsize| counter.fetch_sub(bytes, Relaxed);
        give_back(&self.memory.used);
        if let Some((client, site)) = self.counters {
            give_back(&self.memory.used_by_client[client]);
            give_back(&self.memory.used_by_site[site]);
        }
    }
}

impl Drop for ReservedMemory {
    fn drop(&mut self) {
        self.release(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const CAPACITY: usize = 64 << 20;

    /// What each request of the tests needs.
    const COST: usize = 16 << 10;

    fn empty_memory(shares: Shares) -> SharedMemory {
        SharedMemory::new(CAPACITY, shares, IntCounter::new("refused", "refused").unwrap())
    }

    /// As many requests of a client as get memory.
    fn fill(memory: &Arc<SharedMemory>, address: &str) -> Vec<ReservedMemory> {
        let address = address.parse().ok();
        std::iter::from_fn(|| memory.reserve(address, COST)).collect()
    }

    /// Memory in which these clients of different sites share no counter.
    fn memory_of(shares: Shares, addresses: &[&str]) -> Arc<SharedMemory> {
        loop {
            let memory = empty_memory(shares);
            let networks = |of: fn(IpAddr) -> Network| {
                let counters = addresses.iter().map(|address| memory.counter(of(address.parse().unwrap())));
                counters.collect::<HashSet<_>>().len()
            };
            if networks(Network::of_client) == addresses.len() && networks(Network::of_site) == addresses.len() {
                return Arc::new(memory);
            }
        }
    }

    #[test]
    fn clients_share_the_memory() {
        let all = CAPACITY / COST;
        let memory = memory_of(Shares { client: 3, site: 1 }, &["192.0.2.1", "198.51.100.1", "2001:db8::1"]);
        let first = fill(&memory, "192.0.2.1");
        assert_eq!(first.len(), all / 4);
        let second = fill(&memory, "198.51.100.1");
        assert_eq!(second.len(), all * 3 / 16);
        let third = fill(&memory, "2001:db8::1");
        assert_eq!(third.len(), all * 9 / 64);
        drop((first, second, third));
        assert_eq!(memory.used.load(Relaxed), 0);
        assert_eq!(fill(&memory, "2001:db8::2").len(), all / 4);
    }

    #[test]
    fn site_leaves_half_of_the_memory_to_others() {
        let memory = memory_of(Shares { client: 3, site: 1 }, &["192.0.2.1", "198.51.100.1"]);
        let requests: Vec<_> = (0..=255).flat_map(|client: u8| fill(&memory, &format!("192.0.2.{client}"))).collect();
        let used = memory.used.load(Relaxed);
        assert!(used <= CAPACITY / 2 && used > CAPACITY / 3, "{used}");
        assert!(!fill(&memory, "198.51.100.1").is_empty());
        drop(requests);
    }

    #[test]
    fn clients_without_an_address_share_all_memory() {
        let memory = Arc::new(empty_memory(Shares { client: 1, site: 0 }));
        assert_eq!(fill(&memory, "192.0.2.1").len(), CAPACITY / COST / 2);
        assert_eq!(fill(&memory, "Unix socket").len(), CAPACITY / COST);
    }

    #[test]
    fn request_that_does_not_fit_frees_its_memory() {
        let memory = Arc::new(empty_memory(Shares { client: 3, site: 1 }));
        let mut request = memory.reserve("192.0.2.1".parse().ok(), COST).unwrap();
        assert!(request.grow(1000));
        assert!(!request.grow(CAPACITY / 4));
        assert_eq!((memory.used.load(Relaxed), request.bytes(), memory.refused.get()), (COST + 1000, COST + 1000, 1));
        drop(request);
        let counters = memory.used_by_client.iter().chain(&memory.used_by_site).chain([&memory.used]);
        assert!(counters.into_iter().all(|counter| counter.load(Relaxed) == 0));
    }
}
