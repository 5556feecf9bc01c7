//! The network of a client, which counts as one client when connections and requests are limited.

use std::net::{IpAddr, Ipv6Addr};

/// A network of client addresses, represented by its first address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Network(IpAddr);

impl Network {
    /// The addresses that one client can choose freely: an IPv4 address, or the /64 network of an IPv6 address.
    pub fn of_client(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        })
    }

    /// The bytes of the first address.
    pub fn octets(self) -> Vec<u8> {
        match self.0 {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_have_the_stated_sizes() {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        assert_eq!(Network::of_client(address("192.0.2.7")), Network(address("192.0.2.7")));
        assert_eq!(Network::of_client(address("::ffff:192.0.2.7")), Network(address("192.0.2.7")), "mapped addresses");
        assert_eq!(Network::of_client(address("2001:db8:1:2:3::4")), Network(address("2001:db8:1:2::")));
    }
}
