//! Where a request comes from: the address of the client, also behind proxies, and whether it came over HTTPS.
//!
//! Neighbours: `limits` counts by the address, `caller` hands it on to the audit. The rule of the room: what a request
//! says of its own way is believed only if the peer, who cannot lie about its address, is a listed proxy.

use crate::http::{error::ApiError, state::AppState};
use axum::{
    extract::{ConnectInfo, FromRequestParts, Request, State},
    http::{HeaderMap, HeaderName, request::Parts},
    middleware::Next,
    response::{IntoResponse, Response},
};
use ipnet::IpNet;
use std::net::{IpAddr, SocketAddr};

/// The addresses that a request passed, each written by the one that it reached next.
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// What the client spoke to the proxy.
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// The proxies in front of this server, and what they do.
#[derive(Debug, Clone, Default)]
pub struct Proxies {
    /// Their networks.
    pub trusted: Vec<IpNet>,
    /// Whether they terminate TLS, so that the API speaks plain HTTP to them and to nobody else.
    pub terminate_tls: bool,
}

/// Where a request comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// The client; an IPv4 address that was mapped into IPv6 is the IPv4 address.
    pub address: IpAddr,
    /// Whether all of its way was over HTTPS.
    secure: bool,
}

impl Proxies {
    /// The origin of a request with these headers that this peer sent.
    fn origin(&self, peer: IpAddr, headers: &HeaderMap) -> Origin {
        let peer = peer.to_canonical();
        let listed = self.lists(peer);
        let address = if listed { self.client(headers).unwrap_or(peer) } else { peer };
        Origin { address, secure: !self.terminate_tls || (listed && is_https(headers)) }
    }

    fn lists(&self, address: IpAddr) -> bool {
        self.trusted.iter().any(|network| network.contains(&address))
    }

    /// The rightmost address that is not a listed proxy: further to the left stands what the client wrote.
    /// If all are listed, the client is a listed machine itself, and is the first. None if it cannot be told.
    fn client(&self, headers: &HeaderMap) -> Option<IpAddr> {
        let mut first = None;
        for value in headers.get_all(FORWARDED_FOR).iter().rev() {
            for hop in value.to_str().ok()?.rsplit(',') {
                let hop = address(hop.trim())?;
                if !self.lists(hop) {
                    return Some(hop);
                }
                first = Some(hop);
            }
        }
        first
    }
}

/// An address, which some proxies write with the port.
fn address(text: &str) -> Option<IpAddr> {
    let with_port = || text.parse().ok().map(|socket: SocketAddr| socket.ip());
    text.parse().ok().or_else(with_port).map(|address| address.to_canonical())
}

/// Whether every hop that is spoken of was HTTPS, and one was.
fn is_https(headers: &HeaderMap) -> bool {
    let mut values = headers.get_all(FORWARDED_PROTO).iter().peekable();
    values.peek().is_some()
        && values.all(|value| {
            let hops = value.to_str().unwrap_or_default().split(',');
            hops.map(str::trim).all(|hop| hop.eq_ignore_ascii_case("https"))
        })
}

/// Finds out where a request comes from, before anybody asks.
pub async fn find(State(state): State<AppState>, mut request: Request, next: Next) -> Response {
    if let Some(ConnectInfo(peer)) = request.extensions().get::<ConnectInfo<SocketAddr>>() {
        let origin = state.proxies.origin(peer.ip(), request.headers());
        request.extensions_mut().insert(origin);
    }
    next.run(request).await
}

/// Refuses what came over plain HTTP, or from somebody who cannot be believed when saying that it did not.
pub async fn require_https(request: Request, next: Next) -> Response {
    match request.extensions().get::<Origin>() {
        Some(Origin { secure: true, .. }) => next.run(request).await,
        Some(_) | None => ApiError::https_required().into_response(),
    }
}

impl<S: Sync> FromRequestParts<S> for Origin {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        // Every request passed the layer that puts it in.
        parts.extensions.get().copied().ok_or_else(ApiError::internal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(trusted: &[&str], peer: &str, headers: &[(HeaderName, &str)]) -> Origin {
        let trusted = trusted.iter().map(|network| network.parse().unwrap()).collect();
        let mut sent = HeaderMap::new();
        for (name, value) in headers {
            sent.append(name, value.parse().unwrap());
        }
        Proxies { trusted, terminate_tls: true }.origin(peer.parse().unwrap(), &sent)
    }

    fn client(trusted: &[&str], peer: &str, forwarded: &[&str]) -> String {
        let headers: Vec<_> = forwarded.iter().map(|value| (FORWARDED_FOR, *value)).collect();
        origin(trusted, peer, &headers).address.to_string()
    }

    #[test]
    fn a_stranger_is_who_the_connection_says() {
        assert_eq!(client(&[], "192.0.2.1", &["198.51.100.7"]), "192.0.2.1");
        assert_eq!(client(&["10.0.0.0/8"], "192.0.2.1", &["198.51.100.7"]), "192.0.2.1");
        assert_eq!(client(&["10.0.0.0/8"], "::ffff:192.0.2.1", &[]), "192.0.2.1");
    }

    #[test]
    fn behind_listed_proxies_the_client_is_the_rightmost_that_is_none_of_them() {
        let lists = &["10.0.0.0/8", "fd00::/8"];
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
            assert_eq!(client(lists, "10.0.0.1", forwarded), expected, "{forwarded:?}");
            assert_eq!(client(lists, "::ffff:10.0.0.1", forwarded), expected, "{forwarded:?}");
        }
    }

    #[test]
    fn what_does_not_read_leaves_the_peer() {
        for forwarded in
            ["", "words", "198.51.100.7,", "198.51.100.7, words, 10.2.2.2", "198.51.100", "unknown", "for=1.2.3.4"]
        {
            assert_eq!(client(&["10.0.0.0/8"], "10.0.0.1", &[forwarded]), "10.0.0.1", "{forwarded:?}");
        }
        assert_eq!(client(&["10.0.0.0/8"], "10.0.0.1", &[]), "10.0.0.1");
    }

    #[test]
    fn https_is_believed_of_a_listed_proxy_that_says_nothing_else() {
        let secure = |peer: &str, said: &[&str]| {
            let headers: Vec<_> = said.iter().map(|value| (FORWARDED_PROTO, *value)).collect();
            origin(&["10.0.0.0/8"], peer, &headers).secure
        };
        assert!(secure("10.0.0.1", &["https"]) && secure("10.0.0.1", &["HTTPS, https"]));
        for said in
            [&[][..], &[""], &["http"], &["https, http"], &["http, https"], &["https", "http"], &["https,"], &["wss"]]
        {
            assert!(!secure("10.0.0.1", said), "{said:?}");
        }
        assert!(!secure("192.0.2.1", &["https"]));
    }

    #[test]
    fn where_this_server_terminates_tls_itself_nobody_is_asked() {
        let proxies = Proxies::default();
        assert!(proxies.origin(IpAddr::from([192, 0, 2, 1]), &HeaderMap::new()).secure);
    }
}
