//! The memory for requests in progress, which all clients of the API share.
//!
//! Invariant: a client gets memory only while three times as much as it then has is free, and a site only while as much as it
//! then has is free. So one client gets at most a quarter, one site at most half, and something remains for others, whose shares
//! are smaller. Reserving takes no lock and allocates nothing.

use countersign_process::server::Network;
use prometheus::IntCounter;
use std::{
    hash::{BuildHasher as _, RandomState},
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

/// The memory for all requests in bytes.
const CAPACITY: usize = 64 << 20;

/// What a request needs besides its head and its body, in bytes: about the memory of its task and of its parsed fields. With the
/// capacity, this bounds the number of requests in progress.
const BASE_COST: usize = 16 << 10;

/// How often the memory of a client must be free in addition.
const FREE_PER_CLIENT: usize = 3;

/// The number of counters. Clients with the same hash share a counter, which makes their shares smaller.
const COUNTERS: usize = 1 << 12;

/// The memory for requests in progress.
pub struct RequestMemory {
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
    memory: Arc<RequestMemory>,
    client: usize,
    site: usize,
    bytes: usize,
}

impl RequestMemory {
    /// `refused` counts the requests that get no memory.
    pub fn new(refused: IntCounter) -> Self {
        let counters = || (0..COUNTERS).map(|_| AtomicUsize::new(0)).collect();
        Self {
            used: AtomicUsize::new(0),
            used_by_client: counters(),
            used_by_site: counters(),
            hasher: RandomState::new(),
            refused,
        }
    }

    /// Reserves memory for a request of a client, whose head has `head` bytes. `None` if there is none for the client.
    pub fn reserve(self: &Arc<Self>, address: IpAddr, head: usize) -> Option<ReservedMemory> {
        let (client, site) = (self.counter(Network::of_client(address)), self.counter(Network::of_site(address)));
        let mut reserved = ReservedMemory { memory: Arc::clone(self), client, site, bytes: 0 };
        reserved.grow(BASE_COST + head).then_some(reserved)
    }

    fn counter(&self, network: Network) -> usize {
        let hash = self.hasher.hash_one(network) % COUNTERS as u64;
        usize::try_from(hash).unwrap_or_default()
    }
}

impl ReservedMemory {
    /// Reserves more bytes for the request. Returns whether there are as many for its client.
    #[must_use]
    pub fn grow(&mut self, bytes: usize) -> bool {
        let take = |counter: &AtomicUsize| counter.fetch_add(bytes, Relaxed) + bytes;
        self.bytes += bytes;
        let used = take(&self.memory.used);
        let (by_client, by_site) =
            (take(&self.memory.used_by_client[self.client]), take(&self.memory.used_by_site[self.site]));
        let free = CAPACITY.saturating_sub(used);
        let fits = FREE_PER_CLIENT * by_client <= free && by_site <= free;
        if !fits {
            self.release(bytes);
            self.memory.refused.inc();
        }
        fits
    }

    fn release(&mut self, bytes: usize) {
        self.bytes -= bytes;
        for counter in
            [&self.memory.used, &self.memory.used_by_client[self.client], &self.memory.used_by_site[self.site]]
        {
            counter.fetch_sub(bytes, Relaxed);
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

    fn empty_memory() -> RequestMemory {
        RequestMemory::new(IntCounter::new("refused", "refused").unwrap())
    }

    /// As many requests of a client as get memory.
    fn fill(memory: &Arc<RequestMemory>, address: &str) -> Vec<ReservedMemory> {
        let address = address.parse().unwrap();
        std::iter::from_fn(|| memory.reserve(address, 0)).collect()
    }

    /// Memory in which these clients of different sites share no counter.
    fn memory_of(addresses: &[&str]) -> Arc<RequestMemory> {
        loop {
            let memory = empty_memory();
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
        let all = CAPACITY / BASE_COST;
        let memory = memory_of(&["192.0.2.1", "198.51.100.1", "2001:db8::1"]);
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
        let memory = memory_of(&["192.0.2.1", "198.51.100.1"]);
        let requests: Vec<_> = (0..=255).flat_map(|client: u8| fill(&memory, &format!("192.0.2.{client}"))).collect();
        let used = memory.used.load(Relaxed);
        assert!(used <= CAPACITY / 2 && used > CAPACITY / 3, "{used}");
        assert!(!fill(&memory, "198.51.100.1").is_empty());
        drop(requests);
    }

    #[test]
    fn body_that_does_not_fit_frees_its_memory() {
        let memory = Arc::new(empty_memory());
        let mut request = memory.reserve("192.0.2.1".parse().unwrap(), 100).unwrap();
        assert!(request.grow(1000));
        assert!(!request.grow(CAPACITY / 4));
        assert_eq!((memory.used.load(Relaxed), memory.refused.get()), (BASE_COST + 1100, 1));
        drop(request);
        let counters = memory.used_by_client.iter().chain(&memory.used_by_site).chain([&memory.used]);
        assert!(counters.into_iter().all(|counter| counter.load(Relaxed) == 0));
    }
}
