//! Finds out the address of the client, even behind proxies, and whether the request used HTTPS.
//!
//! `limits` counts requests by the client address, and `caller` records the client address in the audit log. Invariant:
//! forwarding headers are trusted only if the peer of the TCP connection is a configured proxy.

use crate::http::{error::ApiError, state::AppState};
use axum::{
    extract::{ConnectInfo, Request},
    http::{HeaderMap, HeaderName},
};
use countersign_process::server::ConnectionAddresses;
use ipnet::IpNet;
use std::net::{IpAddr, SocketAddr};

/// The header with the addresses of previous hops. Each proxy appends the address from which it received the request.
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The header with the protocol between client and proxy.
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// The configured proxies in front of this server.
#[derive(Debug, Clone, Default)]
pub struct TrustedProxies {
    /// The networks of the proxies.
    pub trusted: Vec<IpNet>,
    /// Whether the proxies terminate TLS. If they do, the API serves plain HTTP, to trusted proxies only.
    pub terminate_tls: bool,
}

/// The client of a request, stored as an extension of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientAddress {
    /// IP address of the client. IPv4-mapped IPv6 addresses are converted to IPv4.
    pub ip: IpAddr,
    /// Whether the client used HTTPS, to this server or to a trusted proxy.
    https: bool,
}

impl TrustedProxies {
    /// The client of a request, from the peer of the connection and the headers of the request.
    fn client_address(&self, peer: IpAddr, headers: &HeaderMap) -> ClientAddress {
        let peer = peer.to_canonical();
        let trusted = self.contains(peer);
        let ip = if trusted { self.forwarded_client(headers).unwrap_or(peer) } else { peer };
        ClientAddress { ip, https: !self.terminate_tls || (trusted && is_https(headers)) }
    }

    fn contains(&self, address: IpAddr) -> bool {
        self.trusted.iter().any(|network| network.contains(&address))
    }

    /// Each proxy appends the address of its peer, so the client is the rightmost address in `X-Forwarded-For` that is no trusted
    /// proxy: the client may have invented everything to the left of it. If all addresses are of trusted proxies, the client is the
    /// leftmost one. `None` if there is no address, or if the client's address or one to the right of it cannot be parsed.
    fn forwarded_client(&self, headers: &HeaderMap) -> Option<IpAddr> {
        let mut leftmost = None;
        for value in headers.get_all(FORWARDED_FOR).iter().rev() {
            for hop in value.to_str().ok()?.rsplit(',') {
                let hop = parse_address(hop.trim())?;
                if !self.contains(hop) {
                    return Some(hop);
                }
                leftmost = Some(hop);
            }
        }
        leftmost
    }
}

/// Parses an address, to which some proxies append a port.
fn parse_address(text: &str) -> Option<IpAddr> {
    let with_port = || text.parse().ok().map(|socket: SocketAddr| socket.ip());
    text.parse().ok().or_else(with_port).map(|address| address.to_canonical())
}

/// Whether `X-Forwarded-Proto` is present and lists only `https`.
fn is_https(headers: &HeaderMap) -> bool {
    let mut values = headers.get_all(FORWARDED_PROTO).iter().peekable();
    values.peek().is_some()
        && values.all(|value| {
            let hops = value.to_str().unwrap_or_default().split(',');
            hops.map(str::trim).all(|hop| hop.eq_ignore_ascii_case("https"))
        })
}

/// Determines the client address of a request, and stores it as an extension of the request. [`require_https`] refuses requests
/// without this extension.
pub fn resolve_client_address(state: &AppState, request: &mut Request) {
    if let Some(ConnectInfo(addresses)) = request.extensions().get::<ConnectInfo<ConnectionAddresses>>() {
        let client = state.proxies.client_address(addresses.peer.ip(), request.headers());
        request.extensions_mut().insert(client);
    }
}

/// Refuses a request that did not use HTTPS, or that bypasses the trusted proxies.
pub fn require_https(request: &Request) -> Result<(), ApiError> {
    match request.extensions().get::<ClientAddress>() {
        Some(ClientAddress { https: true, .. }) => Ok(()),
        Some(_) | None => Err(ApiError::https_required()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client_address(trusted: &[&str], peer: &str, headers: &[(HeaderName, &str)]) -> ClientAddress {
        let trusted = trusted.iter().map(|network| network.parse().unwrap()).collect();
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(name, value.parse().unwrap());
        }
        TrustedProxies { trusted, terminate_tls: true }.client_address(peer.parse().unwrap(), &map)
    }

    fn client_ip(trusted: &[&str], peer: &str, forwarded: &[&str]) -> String {
        let headers: Vec<_> = forwarded.iter().map(|value| (FORWARDED_FOR, *value)).collect();
        client_address(trusted, peer, &headers).ip.to_string()
    }

    #[test]
    fn ignores_forwarded_addresses_from_untrusted_peers() {
        assert_eq!(client_ip(&[], "192.0.2.1", &["198.51.100.7"]), "192.0.2.1");
        assert_eq!(client_ip(&["10.0.0.0/8"], "192.0.2.1", &["198.51.100.7"]), "192.0.2.1");
        assert_eq!(client_ip(&["10.0.0.0/8"], "::ffff:192.0.2.1", &[]), "192.0.2.1");
    }

    #[test]
    fn client_is_the_rightmost_address_that_is_not_a_trusted_proxy() {
        let trusted = &["10.0.0.0/8", "fd00::/8"];
        for (forwarded, expected) in [
            (&["198.51.100.7"][..], "198.51.100.7"),
            (&["203.0.113.9, 198.51.100.7"], "198.51.100.7"),
            (&["203.0.113.9, 198.51.100.7, 10.9.9.9"], "198.51.100.7"),
            (&["203.0.113.9", "198.51.100.7", "fd00::1,10.9.9.9"], "198.51.100.7"),
            (&["words, 198.51.100.7"], "198.51.100.7"),
            (&["198.51.100.7:4711"], "198.51.100.7"),
            (&["[2001:db8::7]:4711"], "2001:db8::7"),
            (&["2001:db8::7"], "2001:db8::7"),
            (&["::ffff:198.51.100.7"], "198.51.100.7"),
            (&["::ffff:10.1.1.1"], "10.1.1.1"),
            (&["10.3.3.3, 10.2.2.2"], "10.3.3.3"),
        ] {
            assert_eq!(client_ip(trusted, "10.0.0.1", forwarded), expected, "{forwarded:?}");
            assert_eq!(client_ip(trusted, "::ffff:10.0.0.1", forwarded), expected, "{forwarded:?}");
        }
    }

    #[test]
    fn malformed_forwarded_addresses_leave_the_peer_as_client() {
        for forwarded in
            ["", "words", "198.51.100.7,", "198.51.100.7, words, 10.2.2.2", "198.51.100", "unknown", "for=1.2.3.4"]
        {
            assert_eq!(client_ip(&["10.0.0.0/8"], "10.0.0.1", &[forwarded]), "10.0.0.1", "{forwarded:?}");
        }
        assert_eq!(client_ip(&["10.0.0.0/8"], "10.0.0.1", &[]), "10.0.0.1");
    }

    #[test]
    fn accepts_https_from_a_trusted_proxy_that_reports_only_https() {
        let is_secure = |peer: &str, protocols: &[&str]| {
            let headers: Vec<_> = protocols.iter().map(|value| (FORWARDED_PROTO, *value)).collect();
            client_address(&["10.0.0.0/8"], peer, &headers).https
        };
        assert!(is_secure("10.0.0.1", &["https"]) && is_secure("10.0.0.1", &["HTTPS, https"]));
        for protocols in
            [&[][..], &[""], &["http"], &["https, http"], &["http, https"], &["https", "http"], &["https,"], &["wss"]]
        {
            assert!(!is_secure("10.0.0.1", protocols), "{protocols:?}");
        }
        assert!(!is_secure("192.0.2.1", &["https"]));
    }

    #[test]
    fn requests_are_https_when_this_server_terminates_tls() {
        let proxies = TrustedProxies::default();
        assert!(proxies.client_address(IpAddr::from([192, 0, 2, 1]), &HeaderMap::new()).https);
    }
}
