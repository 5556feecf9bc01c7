//! Recognizes hosts that a web page can have. A server on loopback refuses requests for them.
//!
//! A web page can make its own host name resolve to a loopback address (DNS rebinding), and then read what the server at this address
//! answers. The browser still sends the name of the page in `Host`. An address needs no DNS, and browsers do not ask DNS for
//! `localhost`, so no web page can take these over.

use std::net::{Ipv4Addr, Ipv6Addr};

/// Whether a web page can have this host: every host except `localhost` and IP addresses. `host` is the value of `Host` or
/// `:authority`, with or without a port.
pub fn can_be_rebound(host: &str) -> bool {
    let is_port = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let name = host.rsplit_once(':').filter(|(_, port)| is_port(port)).map_or(host, |(name, _)| name);
    let is_address = match name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => name.parse::<Ipv4Addr>().is_ok(),
    };
    !is_address && !name.eq_ignore_ascii_case("localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_localhost_and_addresses_cannot_be_rebound() {
        for host in
            ["localhost", "LocalHost:9092", "127.0.0.1", "127.0.0.1:9092", "10.1.2.3:9092", "[::1]", "[::1]:9092"]
        {
            assert!(!can_be_rebound(host), "{host}");
        }
        for host in [
            "",
            ":9092",
            "page.example",
            "page.example:9092",
            "localhost.page.example",
            "page.localhost",
            "localhost:9092.page.example",
            "user@localhost",
            "127.0.0.1.page.example",
            "127.0.0.1, localhost",
            "127.1",
            "2130706433",
            "::1",
            "[::1",
            "[page.example]",
            " localhost",
        ] {
            assert!(can_be_rebound(host), "{host}");
        }
    }
}
