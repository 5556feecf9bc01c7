//! Which addresses events may be sent to: those of the public Internet, and those that the operator lists.
//!
//! Whoever can make a target must not reach, through this server, what only this server can reach. The lists are
//! those of IANA's special-purpose registries (RFC 6890 and its updates).

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// What is not the public Internet, of IPv4.
const SPECIAL_V4: [Ipv4Net; 14] = [
    v4([0, 0, 0, 0], 8),
    v4([10, 0, 0, 0], 8),
    v4([100, 64, 0, 0], 10),
    v4([127, 0, 0, 0], 8),
    v4([169, 254, 0, 0], 16),
    v4([172, 16, 0, 0], 12),
    v4([192, 0, 0, 0], 24),
    v4([192, 0, 2, 0], 24),
    v4([192, 88, 99, 0], 24),
    v4([192, 168, 0, 0], 16),
    v4([198, 18, 0, 0], 15),
    v4([198, 51, 100, 0], 24),
    v4([203, 0, 113, 0], 24),
    v4([224, 0, 0, 0], 3),
];

/// What may be the public Internet, of IPv6: global unicast. Loopback, link-local, unique local, multicast, and
/// the addresses that NAT64 and IPv4 hide in are outside of it.
const GLOBAL_V6: Ipv6Net = v6([0x2000, 0], 3);

/// What is not, within that: protocol assignments with Teredo, documentation, 6to4, and documentation again.
const SPECIAL_V6: [Ipv6Net; 4] =
    [v6([0x2001, 0], 23), v6([0x2001, 0xdb8], 32), v6([0x2002, 0], 16), v6([0x3fff, 0], 20)];

const fn v4(octets: [u8; 4], length: u8) -> Ipv4Net {
    let [a, b, c, d] = octets;
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), length)
}

const fn v6(segments: [u16; 2], length: u8) -> Ipv6Net {
    let [a, b] = segments;
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, 0, 0, 0, 0, 0, 0), length)
}

/// Whether an address is of the public Internet.
pub fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => !SPECIAL_V4.iter().any(|special| special.contains(&address)),
        IpAddr::V6(address) => {
            GLOBAL_V6.contains(&address) && !SPECIAL_V6.iter().any(|special| special.contains(&address))
        }
    }
}

/// The networks that events may be sent to although they are not public.
#[derive(Debug, Clone, Default)]
pub struct AllowedNetworks(Vec<IpNet>);

impl AllowedNetworks {
    /// These networks.
    pub const fn new(networks: Vec<IpNet>) -> Self {
        Self(networks)
    }

    /// Whether the operator lists the address.
    pub fn lists(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|network| network.contains(&address))
    }

    /// Whether events may be sent to the address; unencrypted only where the operator lists it.
    pub fn admit(&self, address: IpAddr, plain: bool) -> bool {
        self.lists(address) || (!plain && is_public(address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_public_internet_is_public() {
        for public in
            ["1.1.1.1", "100.63.255.255", "172.32.0.1", "192.167.1.1", "2606:4700::1", "2a00:1450::1", "::ffff:1.1.1.1"]
        {
            assert!(is_public(public.parse().unwrap()), "{public}");
        }
        for private in [
            "0.0.0.0",
            "0.1.2.3",
            "10.1.2.3",
            "100.64.0.1",
            "127.0.0.1",
            "127.255.1.1",
            "169.254.169.254",
            "172.31.255.1",
            "192.0.0.8",
            "192.0.2.1",
            "192.168.1.1",
            "198.19.0.1",
            "203.0.113.9",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::127.0.0.1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b:1::1",
            "100::1",
            "fe80::1",
            "fec0::1",
            "fd00::1",
            "fc00::1",
            "ff02::1",
            "2001::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "3fff::1",
            "5f00::1",
        ] {
            assert!(!is_public(private.parse().unwrap()), "{private}");
        }
    }

    #[test]
    fn listed_networks_are_let_through_also_unencrypted() {
        let allowed = AllowedNetworks::new(vec!["10.1.0.0/16".parse().unwrap()]);
        for (address, plain, expected) in [
            ("10.1.2.3", true, true),
            ("::ffff:10.1.2.3", false, true),
            ("10.2.0.1", false, false),
            ("1.1.1.1", false, true),
            ("1.1.1.1", true, false),
        ] {
            assert_eq!(allowed.admit(address.parse().unwrap(), plain), expected, "{address} {plain}");
        }
    }
}
