use super::*;
use proptest::prelude::*;
use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Duration,
};

const SECOND: u64 = 1_000_000;

const QUOTA: Quota = Quota { max_calls: 3, window: Duration::from_mins(1) };

/// A table with a capacity, used as `memory` uses it.
struct Table {
    windows: NetworkWindows,
    capacity: usize,
    now: u64,
}

impl Table {
    fn new(capacity: usize) -> Self {
        Self { windows: NetworkWindows::default(), capacity, now: 1_000 * SECOND }
    }

    /// Whether a call of a key in the network of this address is allowed.
    fn acquire(&mut self, address: impl Into<IpAddr>, key: u32) -> bool {
        let (network, digest) = (ClientNetwork::new(0, address.into()), digest(key));
        self.windows.remove_expired(self.now);
        if self.windows.status(network, &digest, QUOTA, self.now).remaining == 0 {
            return false;
        }
        if !self.windows.contains(network, &digest) && self.windows.len() >= self.capacity {
            if !self.windows.make_room(self.capacity, self.now, &mut Vec::new()) {
                return false;
            }
            if self.windows.status(network, &digest, QUOTA, self.now).remaining == 0 {
                return false;
            }
        }
        self.windows.count(network, digest, QUOTA, self.now);
        assert!(self.windows.len() <= self.capacity);
        true
    }
}

fn digest(key: u32) -> KeyDigest {
    let mut digest = [0; 16];
    digest[..4].copy_from_slice(&key.to_be_bytes());
    digest
}

/// An address of the attacker: in `2001:db8::/32`, in one of its /48 networks, in one /64 of it.
fn attacker(network: u16, subnet: u16) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xdb8, network, subnet, 0, 0, 0, 1)
}

const HONEST: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

/// Checks the counts against the stored windows.
fn assert_consistent(windows: &NetworkWindows) {
    let (mut len, mut blocks) = (0, HashMap::new());
    for (scope, entry) in &windows.scopes {
        let count = entry.windows.len();
        len += count;
        *blocks.entry(scope.block()).or_default() += count;
        assert!(count > 0);
        assert!(windows.by_window_count.contains(&(scope.block(), count, *scope)));
        assert!(windows.cleanups.contains(&(entry.cleanup_at, *scope)));
    }
    assert_eq!((windows.len, &windows.blocks), (len, &blocks));
    assert_eq!((windows.by_window_count.len(), windows.cleanups.len()), (windows.scopes.len(), windows.scopes.len()));
    let by_count = blocks.iter().map(|(block, count)| (*count, *block)).collect();
    assert_eq!(windows.blocks_by_window_count, by_count);
}

#[test]
fn flood_of_one_network_refuses_only_that_network_and_resets_no_count() {
    let mut table = Table::new(1000);
    assert!(table.acquire(HONEST, 0) && table.acquire(HONEST, 0));
    for _ in 0..3 {
        assert!(table.acquire(attacker(1, 0), 0));
    }
    assert!(!table.acquire(attacker(1, 0), 0));
    let neighbour = attacker(2, 0);
    assert!(table.acquire(neighbour, 1) && table.acquire(neighbour, 1));
    let allowed = (1..5000).filter(|key| table.acquire(attacker(1, u16::try_from(*key).unwrap()), *key)).count();
    assert!(allowed < 1000, "{allowed}");
    assert!(!table.acquire(attacker(1, 0), 0), "the count of the attacker is not reset");
    for honest in [IpAddr::from(HONEST), neighbour.into()] {
        let key = u32::from(honest.is_ipv6());
        assert!(table.acquire(honest, key), "the third of three calls");
        assert!(!table.acquire(honest, key), "the count of others is not reset");
    }
    assert!((0..500).all(|key| table.acquire(Ipv4Addr::from(0xC633_6400 + key), key)), "others are not limited");
    assert_consistent(&table.windows);
    table.now += 60 * SECOND;
    assert!(table.acquire(attacker(1, 7), 7) && table.acquire(attacker(1, 8), 8));
    assert_eq!(table.windows.len(), 2, "the network has separate windows again");
}

#[test]
fn common_window_ends_although_honest_callers_repeat_their_calls() {
    let mut table = Table::new(1000);
    for key in 0..5000 {
        table.acquire(attacker(1, u16::try_from(key).unwrap()), key);
    }
    let client = attacker(1, 9);
    assert!((0..20).filter(|key| table.acquire(client, 10_000 + key)).count() < 20, "the window is common");
    for _second in 0..121 {
        table.now += SECOND;
        for key in 0..20 {
            table.acquire(client, 10_000 + key);
        }
    }
    assert!(table.windows.len() >= 20, "each key has its own window");
    assert_consistent(&table.windows);
}

#[test]
fn flood_of_all_networks_of_a_block_refuses_only_that_block() {
    let mut table = Table::new(10_000);
    let honest: Vec<_> = (0..20).map(|host| Ipv4Addr::new(192, 0, 2, host)).collect();
    assert!(honest.iter().all(|address| table.acquire(*address, address.to_bits())));
    for network in 0..=u16::MAX {
        table.acquire(attacker(network, 0), u32::from(network));
    }
    assert_consistent(&table.windows);
    assert!(!table.acquire(attacker(0, 0), 0), "the block has one common window");
    for address in honest {
        assert!(table.acquire(address, address.to_bits()) && table.acquire(address, address.to_bits()));
        assert!(!table.acquire(address, address.to_bits()), "the counts of others are not reset");
    }
    assert!((0..5000).all(|key| table.acquire(Ipv4Addr::from(0xC600_0000 + (key << 8)), key)));
}

#[test]
fn table_with_one_window_in_each_block_refuses_new_blocks_only() {
    let mut table = Table::new(3);
    let addresses = [1, 2, 3, 4].map(|first| Ipv4Addr::new(first, 0, 0, 1));
    assert!(addresses[..3].iter().all(|address| table.acquire(*address, 0)));
    assert!(!table.acquire(addresses[3], 0));
    assert!(addresses[..3].iter().all(|address| table.acquire(*address, 0)));
    table.now += 60 * SECOND;
    assert!(table.acquire(addresses[3], 0));
}

/// A call: milliseconds since the previous call, block, network, key.
type Call = (u64, u8, u8, u8);

fn calls() -> impl Strategy<Value = Vec<Call>> {
    prop::collection::vec((prop_oneof![Just(0_u64), 0..200_u64, 0..30_000_u64], 0..3_u8, 0..3_u8, 0..5_u8), 1..300)
}

proptest! {
    /// No key gets more calls in a window than its quota, whatever other keys do, and the counts stay right.
    #[test]
    fn no_flood_gives_a_key_more_calls_than_its_quota(capacity in 3_usize..12, calls in calls()) {
        let mut table = Table::new(capacity);
        let mut allowed = HashMap::<_, Vec<u64>>::new();
        for (pause, block, network, key) in calls {
            table.now += pause * 1000;
            let address = Ipv6Addr::new(0x2001, block.into(), network.into(), 0, 0, 0, 0, 0);
            if table.acquire(address, key.into()) {
                let times = allowed.entry((block, network, key)).or_default();
                times.push(table.now);
                let in_window = times.iter().filter(|at| table.now - **at < 60 * SECOND).count();
                prop_assert!(in_window <= QUOTA.max_calls as usize, "{in_window}");
            }
            assert_consistent(&table.windows);
        }
    }

    /// A caller whose block has fewer windows than the capacity divided by the blocks of the attacker is served as if it
    /// were alone.
    #[test]
    fn honest_caller_is_served_as_if_it_were_alone(capacity in 10_usize..24, calls in calls()) {
        let (mut table, mut alone) = (Table::new(capacity), Table::new(capacity));
        for (pause, block, network, key) in calls {
            table.now += pause * 1000;
            alone.now = table.now;
            if block == 0 {
                // The honest block has at most three windows: in one network, or in three.
                let address = Ipv4Addr::new(198, 51, network, 1);
                let key = u32::from(network);
                prop_assert_eq!(table.acquire(address, key), alone.acquire(address, key));
            } else {
                // With a capacity of ten, one of two blocks has more windows than three whenever the table is full.
                let address = Ipv6Addr::new(0x2001, block.into(), network.into(), 0, 0, 0, 0, 0);
                table.acquire(address, key.into());
            }
        }
    }
}
