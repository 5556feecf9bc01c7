//! The values of `countersign envoy config`, checked so that they cannot change the structure of the configuration.

use crate::cli::error::CliError;
use std::{fmt, net::IpAddr, str::FromStr, time::Duration};

/// The names of placeholders, with their values.
pub type Values = Vec<(&'static str, String)>;

/// The longest path of a Unix socket on Linux, without the final zero byte.
const LONGEST_SOCKET_PATH: usize = 107;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPort {
    /// An IP address without brackets, or a DNS name.
    pub host: String,
    pub port: u16,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SidecarAddress {
    /// The absolute path of a Unix socket.
    Unix(String),
    Tcp(HostPort),
}

impl HostPort {
    pub fn is_ip(&self) -> bool {
        self.host.parse::<IpAddr>().is_ok()
    }

    /// Whether only this machine can reach the address.
    fn is_loopback(&self) -> bool {
        self.host == "localhost" || self.host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }
}

impl SidecarAddress {
    /// Whether other machines can read what the proxy sends to this address.
    pub fn is_remote(&self) -> bool {
        match self {
            Self::Unix(_) => false,
            Self::Tcp(address) => !address.is_loopback(),
        }
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

impl FromStr for HostPort {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let expected = "write HOST:PORT, such as 127.0.0.1:8080 or service.example:8080";
        let (host, port) = text.rsplit_once(':').ok_or(expected)?;
        let port = port.parse().ok().filter(|port| *port > 0).ok_or(expected)?;
        let host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            // In one spelling, because Envoy compares addresses in certificates as texts.
            Some(host) => host.parse::<std::net::Ipv6Addr>().map_err(|_| expected)?.to_string(),
            None if is_dns_name(host) => host.to_owned(),
            None => return Err(expected),
        };
        Ok(Self { host, port })
    }
}

impl FromStr for SidecarAddress {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let expected = "write unix:PATH with an absolute path of at most 107 characters, or HOST:PORT";
        match text.strip_prefix("unix:") {
            Some(path) if is_plain_path(path) && path.len() <= LONGEST_SOCKET_PATH => Ok(Self::Unix(path.to_owned())),
            Some(_) => Err(expected),
            None => text.parse().map(Self::Tcp).map_err(|_| expected),
        }
    }
}

/// Parses a name in Kubernetes: a label of RFC 1123.
pub fn label(text: &str) -> Result<String, &'static str> {
    let is_valid = is_label(text) && !text.bytes().any(|byte| byte.is_ascii_uppercase());
    let expected = "write a name of Kubernetes: at most 63 lower-case letters, digits and dashes";
    is_valid.then(|| text.to_owned()).ok_or(expected)
}

/// Parses a DNS name, possibly with a wildcard as its first label, or only a wildcard.
pub fn host_name(text: &str) -> Result<String, &'static str> {
    let is_valid = text == "*" || is_dns_name(text.strip_prefix("*.").unwrap_or(text));
    let expected = "write a DNS name, such as service.example or *.example, or * for all";
    is_valid.then(|| text.to_owned()).ok_or(expected)
}

/// Parses a DNS name without a wildcard.
pub fn dns_name(text: &str) -> Result<String, &'static str> {
    is_dns_name(text).then(|| text.to_owned()).ok_or("write a DNS name, such as authz.example.com")
}

/// Parses the name of a Secret or `ConfigMap` in Kubernetes: a subdomain of RFC 1123.
pub fn object_name(text: &str) -> Result<String, &'static str> {
    let is_valid = is_dns_name(text) && !text.bytes().any(|byte| byte.is_ascii_uppercase());
    let expected = "write the name of a Secret or ConfigMap: lower-case letters, digits, dashes and dots";
    is_valid.then(|| text.to_owned()).ok_or(expected)
}

/// Parses an absolute path of letters, digits, dots, dashes, underscores and slashes.
pub fn plain_path(text: &str) -> Result<String, &'static str> {
    let expected = "write an absolute path of letters, digits and the characters . _ - /";
    is_plain_path(text).then(|| text.to_owned()).ok_or(expected)
}

/// A duration in seconds, as Envoy and Istio write it, such as `0.25s`.
pub fn in_seconds(duration: Duration) -> String {
    let milliseconds = duration.as_millis();
    let fraction = format!("{:03}", milliseconds % 1000);
    let fraction = fraction.trim_end_matches('0');
    let point = if fraction.is_empty() { "" } else { "." };
    format!("{}{point}{fraction}s", milliseconds / 1000)
}

/// A duration in milliseconds, as nginx and the Gateway API write it, such as `250ms`.
pub fn in_milliseconds(duration: Duration) -> String {
    format!("{}ms", duration.as_millis())
}

/// An error about an option, with what to write instead.
pub fn usage(problem: &str, next: &str) -> CliError {
    CliError::usage(problem).with_next(next)
}

fn is_plain_path(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/".contains(&byte);
    text.len() > 1 && text.starts_with('/') && text.bytes().all(is_plain)
}

fn is_dns_name(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_label)
}

fn is_label(text: &str) -> bool {
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    (1..=63).contains(&text.len()) && text.bytes().all(is_valid) && !text.starts_with('-') && !text.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_could_change_the_structure_are_refused() {
        let injections =
            ["a:1\nb: c", "a }: 1", "\"a\":1", "a b:1", "{{x}}:1", "#a:1", "é.example:1", "[::1:1", "a$b:1"];
        for text in injections {
            assert!(text.parse::<HostPort>().is_err(), "{text}");
            assert!(host_name(text).is_err(), "{text}");
            assert!(label(text).is_err(), "{text}");
            assert!(dns_name(text).is_err() && object_name(text).is_err(), "{text}");
            assert!(format!("unix:/{text}").parse::<SidecarAddress>().is_err(), "{text}");
            assert!(plain_path(&format!("/{text}")).is_err(), "{text}");
        }
    }

    #[test]
    fn addresses_are_parsed() {
        for text in ["127.0.0.1:8080", "[::1]:8080", "service.shop.svc:1", "localhost:65535"] {
            assert_eq!(text.parse::<HostPort>().unwrap().to_string(), text);
        }
        for text in ["", "host", "host:0", "host:65536", ":1", "::1:8080", "-a:1", "a-:1", "a..b:1", "host:", "[a]:1"] {
            assert!(text.parse::<HostPort>().is_err(), "{text}");
        }
        let long = format!("unix:/{}", "a".repeat(LONGEST_SOCKET_PATH));
        for text in ["unix:", "unix:relative", "unix:/", &long, "http://x:1"] {
            assert!(text.parse::<SidecarAddress>().is_err(), "{text}");
        }
        assert_eq!("unix:/run/a.sock".parse(), Ok(SidecarAddress::Unix("/run/a.sock".to_owned())));
        for text in ["*", "*.example", "a.example"] {
            assert!(host_name(text).is_ok(), "{text}");
        }
        assert!(host_name("*.*.example").is_err() && label("A").is_err());
        assert!(dns_name("*.example").is_err() && object_name("A").is_err() && object_name("a.b-c").is_ok());
        assert_eq!("[0:0::1]:1".parse::<HostPort>().unwrap().host, "::1");
    }

    #[test]
    fn durations_have_the_units_of_each_format() {
        let durations = [250, 1000, 1050, 3_600_000].map(Duration::from_millis);
        assert_eq!(durations.map(in_seconds), ["0.25s", "1s", "1.05s", "3600s"]);
        assert_eq!(in_milliseconds(durations[2]), "1050ms");
    }
}
