//! Groups of client addresses, by which connections and requests are limited.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A network of client addresses, as its first address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Network(IpAddr);

impl Network {
    /// No network is larger.
    pub(super) const MAX: Self = Self(IpAddr::V6(Ipv6Addr::from_bits(u128::MAX)));

    /// The addresses that one client can choose freely: an IPv4 address, or the /64 network of an IPv6 address.
    pub fn of_client(address: IpAddr) -> Self {
        Self::with_prefix(address, 32, 64)
    }

    /// The addresses that one site can choose freely: the /24 network of an IPv4 address, or the /48 network of an IPv6
    /// address.
    pub fn of_site(address: IpAddr) -> Self {
        Self::with_prefix(address, 24, 48)
    }

    /// The block of a site: the /16 network of an IPv4 address or the /32 network of an IPv6 address, the usual smallest
    /// allocation of a provider.
    pub(super) fn block(self) -> Self {
        Self::with_prefix(self.0, 16, 32)
    }

    /// A site in the usual notation, such as `192.0.2.0/24`.
    pub(super) fn site_text(self) -> String {
        format!("{}/{}", self.0, if self.0.is_ipv4() { 24 } else { 48 })
    }

    /// The bytes of the first address.
    pub fn octets(self) -> Vec<u8> {
        match self.0 {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        }
    }

    fn with_prefix(address: IpAddr, v4_bits: u32, v6_bits: u32) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V4(address) => Ipv4Addr::from_bits(address.to_bits() & (u32::MAX << (32 - v4_bits))).into(),
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << (128 - v6_bits))).into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_have_the_stated_sizes() {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        assert_eq!(Network::of_client(address("192.0.2.7")), Network(address("192.0.2.7")));
        assert_eq!(Network::of_site(address("192.0.2.7")), Network(address("192.0.2.0")));
        assert_eq!(Network::of_client(address("::ffff:192.0.2.7")), Network(address("192.0.2.7")), "mapped addresses");
        assert_eq!(Network::of_client(address("2001:db8:1:2:3::4")), Network(address("2001:db8:1:2::")));
        assert_eq!(Network::of_site(address("2001:db8:1:2:3::4")), Network(address("2001:db8:1::")));
        assert_eq!(Network::of_site(address("192.0.2.7")).block(), Network(address("192.0.0.0")));
        assert_eq!(Network::of_site(address("2001:db8:1:2:3::4")).block(), Network(address("2001:db8::")));
    }
}
