//! The IP addresses that events may be sent to: public addresses, and networks that the operator allows.
//!
//! This prevents server-side request forgery: whoever can create a webhook target must not reach hosts that only the control plane
//! can reach. The ranges of addresses that are not public come from IANA's special-purpose address registries (RFC 6890 and its
//! updates).

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// IPv4 ranges that are not public.
const SPECIAL_V4: [Ipv4Net; 14] = [
    v4_net([0, 0, 0, 0], 8),
    v4_net([10, 0, 0, 0], 8),
    v4_net([100, 64, 0, 0], 10),
    v4_net([127, 0, 0, 0], 8),
    v4_net([169, 254, 0, 0], 16),
    v4_net([172, 16, 0, 0], 12),
    v4_net([192, 0, 0, 0], 24),
    v4_net([192, 0, 2, 0], 24),
    v4_net([192, 88, 99, 0], 24),
    v4_net([192, 168, 0, 0], 16),
    v4_net([198, 18, 0, 0], 15),
    v4_net([198, 51, 100, 0], 24),
    v4_net([203, 0, 113, 0], 24),
    v4_net([224, 0, 0, 0], 3),
];

/// IPv6 global unicast. Loopback, link-local, unique local, multicast, NAT64 and IPv4-compatible addresses are outside of it.
const GLOBAL_V6: Ipv6Net = v6_net([0x2000, 0], 3);

/// Ranges of global unicast that are not public: protocol assignments (with Teredo), 6to4, and two ranges for documentation.
const SPECIAL_V6: [Ipv6Net; 4] =
    [v6_net([0x2001, 0], 23), v6_net([0x2001, 0xdb8], 32), v6_net([0x2002, 0], 16), v6_net([0x3fff, 0], 20)];

const fn v4_net(octets: [u8; 4], length: u8) -> Ipv4Net {
    let [a, b, c, d] = octets;
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), length)
}

const fn v6_net(segments: [u16; 2], length: u8) -> Ipv6Net {
    let [a, b] = segments;
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, 0, 0, 0, 0, 0, 0), length)
}

/// Why events are not sent to a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.as_str())]
pub enum HostRejection {
    /// The host name does not resolve.
    Unresolved,
    /// We did not look up the name, because too many lookups are in progress.
    TooManyLookups,
    /// All addresses of the host are outside the public Internet and the allowed networks.
    NotPublic,
    /// The URL is unencrypted, and the host is not in an allowed network.
    PlaintextNotAllowed,
}

impl HostRejection {
    /// The error message for the client that sent the URL.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unresolved => "has a host whose name does not resolve",
            Self::TooManyLookups => "has a host whose name was not looked up, because too many lookups are in progress",
            Self::NotPublic => {
                "resolves to an address that is not public; the operator can allow its network with \
                 webhooks.allowed_networks"
            }
            Self::PlaintextNotAllowed => {
                "must be https://, except in networks that the operator allows with webhooks.allowed_networks"
            }
        }
    }
}

/// Whether an address belongs to the public Internet.
pub fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => !SPECIAL_V4.iter().any(|special| special.contains(&address)),
        IpAddr::V6(address) => {
            GLOBAL_V6.contains(&address) && !SPECIAL_V6.iter().any(|special| special.contains(&address))
        }
    }
}

/// The networks of `webhooks.allowed_networks`. We may send events there although they are not public, and even without encryption.
#[derive(Debug, Clone, Default)]
pub struct AllowedNetworks(Vec<IpNet>);

impl AllowedNetworks {
    /// Creates the list from the networks in the setting.
    pub const fn new(networks: Vec<IpNet>) -> Self {
        Self(networks)
    }

    /// Whether events may be sent to the address. Without encryption (`plaintext`), only addresses in these networks are allowed.
    pub fn allows(&self, address: IpAddr, plaintext: bool) -> bool {
        let is_listed = self.0.iter().any(|network| network.contains(&address.to_canonical()));
        is_listed || (!plaintext && is_public(address))
    }

    /// Returns the addresses of a host to which we may send events. Fails if there is none.
    pub fn filter(&self, addresses: &[IpAddr], plaintext: bool) -> Result<Vec<IpAddr>, HostRejection> {
        let allowed: Vec<_> = addresses.iter().copied().filter(|address| self.allows(*address, plaintext)).collect();
        if !allowed.is_empty() {
            Ok(allowed)
        } else if addresses.is_empty() {
            Err(HostRejection::Unresolved)
        } else if addresses.iter().any(|address| self.allows(*address, false)) {
            Err(HostRejection::PlaintextNotAllowed)
        } else {
            Err(HostRejection::NotPublic)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_purpose_ranges_are_not_public() {
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
    fn allowed_networks_are_accepted_without_encryption() {
        let allowed = AllowedNetworks::new(vec!["10.1.0.0/16".parse().unwrap()]);
        for (address, plaintext, expected) in [
            ("10.1.2.3", true, true),
            ("::ffff:10.1.2.3", false, true),
            ("10.2.0.1", false, false),
            ("1.1.1.1", false, true),
            ("1.1.1.1", true, false),
        ] {
            assert_eq!(allowed.allows(address.parse().unwrap(), plaintext), expected, "{address} {plaintext}");
        }
    }

    #[test]
    fn filter_returns_the_reason_if_no_address_is_allowed() {
        let allowed = AllowedNetworks::new(vec!["10.1.0.0/16".parse().unwrap()]);
        let filter = |addresses: &[&str], plaintext| {
            let addresses: Vec<_> = addresses.iter().map(|address| address.parse().unwrap()).collect();
            allowed.filter(&addresses, plaintext).map(|filtered| filtered.len())
        };
        assert_eq!(filter(&[], false), Err(HostRejection::Unresolved));
        assert_eq!(filter(&["10.2.0.1"], true), Err(HostRejection::NotPublic));
        assert_eq!(filter(&["1.1.1.1", "10.2.0.1"], true), Err(HostRejection::PlaintextNotAllowed));
        assert_eq!(filter(&["1.1.1.1", "10.1.0.1", "10.2.0.1"], false), Ok(2));
        assert_eq!(filter(&["1.1.1.1", "10.1.0.1"], true), Ok(1));
    }
}
