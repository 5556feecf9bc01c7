//! The networks of a client address. The table of rate-limit windows is divided among networks, because a client can have many
//! addresses of one network.

use std::{fmt, net::IpAddr};

/// Number of bits of the prefix in a [`ClientNetwork`].
const PREFIX_BITS: u32 = 48;

/// The network of a client address: its IPv4 /24 or IPv6 /48. Networks of different classes are different, so that limits of
/// different kinds never share a window. The value is not printed, because it contains a part of the client's address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientNetwork(u64);

/// A block of networks: an IPv4 /16 or an IPv6 /32, the usual smallest allocation of a provider.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct NetworkBlock(u64);

impl NetworkBlock {
    pub(super) const MAX: Self = Self(u64::MAX);
}

impl ClientNetwork {
    pub(super) const MIN: Self = Self(0);

    /// The network of an address. `class` is the kind of limit.
    pub fn new(class: u8, address: IpAddr) -> Self {
        let (version, prefix) = match address {
            IpAddr::V4(address) => (4, u64::from(address.to_bits() >> 8) << 24),
            IpAddr::V6(address) => {
                let [first, second, third, ..] = address.segments().map(u64::from);
                (6, (first << 32) | (second << 16) | third)
            }
        };
        Self((u64::from(class) << 56) | (version << PREFIX_BITS) | prefix)
    }

    pub(super) const fn block(self) -> NetworkBlock {
        let is_v4 = (self.0 >> PREFIX_BITS) & 0xff == 4;
        // In a prefix of 48 bits, an IPv4 /16 leaves 32 bits and an IPv6 /32 leaves 16.
        NetworkBlock(if is_v4 { self.0 >> 32 << 32 } else { self.0 >> 16 << 16 })
    }
}

impl fmt::Debug for NetworkBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NetworkBlock(..)")
    }
}

impl fmt::Debug for ClientNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientNetwork(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_a_network_and_networks_of_a_block_are_equal() {
        let network = |address: &str| ClientNetwork::new(1, address.parse().unwrap());
        for (first, second, same_network, same_block) in [
            ("192.0.2.1", "192.0.2.255", true, true),
            ("192.0.2.1", "192.0.3.1", false, true),
            ("192.0.2.1", "192.1.2.1", false, false),
            ("2001:db8:1::", "2001:db8:1:ffff::1", true, true),
            ("2001:db8:1::", "2001:db8:2::", false, true),
            ("2001:db8:1::", "2001:db9:1::", false, false),
            ("0.0.0.0", "::", false, false),
        ] {
            let (first, second) = (network(first), network(second));
            assert_eq!((first == second, first.block() == second.block()), (same_network, same_block));
        }
        let address = "192.0.2.1".parse().unwrap();
        assert_ne!(ClientNetwork::new(1, address).block(), ClientNetwork::new(2, address).block());
        assert!(!format!("{:?}", network("192.0.2.1")).contains("192"));
    }
}
