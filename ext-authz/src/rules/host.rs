//! Hosts of requests and host patterns of rules.

use std::{borrow::Cow, net::Ipv6Addr};

/// The maximum length of a host name in DNS.
const MAX_HOST: usize = 253;

/// The maximum length of a part of a host name in DNS.
const MAX_LABEL: usize = 63;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostPattern {
    Any,
    /// Every host that ends with this text, such as `.example.com`.
    Wildcard(Box<str>),
    Exact(Box<str>),
}

/// The host in lower case, without port and without a dot at its end. `None` if the text is not a host.
pub fn normalize_host(authority: &str) -> Option<Cow<'_, str>> {
    let host = without_port(authority)?;
    let host = host.strip_suffix('.').unwrap_or(host);
    let is_valid = if let Some(address) = host.strip_prefix('[') {
        address.strip_suffix(']')?.parse::<Ipv6Addr>().is_ok()
    } else {
        host.len() <= MAX_HOST && host.split('.').all(is_label)
    };
    let is_lower_case = !host.bytes().any(|byte| byte.is_ascii_uppercase());
    is_valid.then(|| if is_lower_case { Cow::Borrowed(host) } else { Cow::Owned(host.to_ascii_lowercase()) })
}

fn without_port(authority: &str) -> Option<&str> {
    // An IPv6 address contains colons, too, and is in brackets.
    let address_length = authority.find(']').map_or(0, |end| end + 1);
    match authority.split_at(address_length).1.split_once(':') {
        None => Some(authority),
        Some((_, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && port.len() <= 5 => {
            authority.get(..authority.len() - port.len() - 1)
        }
        Some(_) => None,
    }
}

fn is_label(label: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    !label.is_empty() && label.len() <= MAX_LABEL && label.bytes().all(is_allowed)
}

impl HostPattern {
    /// Parses a host, or `*.` and a domain. The error says what is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (domain, is_wildcard) = match text.strip_prefix("*.") {
            Some(domain) => (domain, true),
            None => (text, false),
        };
        let normal = normalize_host(domain).filter(|_| !is_wildcard || !domain.starts_with('['));
        let normal = normal.ok_or_else(|| {
            format!(
                "`host`: `{}` is not a host: write a name such as `api.example.com` or `*.example.com`",
                text.escape_debug()
            )
        })?;
        if normal != domain {
            return Err(format!(
                "`host`: write `{}{normal}`: lower case, without port and without a dot at the end",
                if is_wildcard { "*." } else { "" }
            ));
        }
        Ok(if is_wildcard { Self::Wildcard(format!(".{normal}").into()) } else { Self::Exact(normal.into()) })
    }

    /// Whether a host in normal form matches. `None` stands for a text that is not a host: only [`HostPattern::Any`] matches it.
    pub fn matches(&self, host: Option<&str>) -> bool {
        match (self, host) {
            (Self::Any, _) => true,
            (Self::Wildcard(suffix), Some(host)) => host.ends_with(&**suffix),
            (Self::Exact(exact), Some(host)) => **exact == *host,
            (Self::Wildcard(_) | Self::Exact(_), None) => false,
        }
    }

    /// A host that matches; `None` for a pattern that every host matches.
    pub fn example(&self) -> Option<String> {
        match self {
            Self::Any => None,
            Self::Wildcard(suffix) => Some(format!("x{suffix}")),
            Self::Exact(host) => Some(host.to_string()),
        }
    }

    /// Whether some host matches both patterns.
    pub fn intersects(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, _) | (_, Self::Any) => true,
            (Self::Wildcard(a), Self::Wildcard(b)) => a.ends_with(&**b) || b.ends_with(&**a),
            (Self::Exact(host), pattern) | (pattern, Self::Exact(host)) => pattern.matches(Some(host)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_have_one_normal_form() {
        for (authority, host) in [
            ("api.example.com", "api.example.com"),
            ("API.Example.COM.:8443", "api.example.com"),
            ("localhost:", "localhost"),
            ("10.0.0.1:80", "10.0.0.1"),
            ("[::1]:8443", "[::1]"),
            ("[2001:DB8::1]", "[2001:db8::1]"),
            ("my_service", "my_service"),
        ] {
            assert_eq!(normalize_host(authority).as_deref(), Some(host), "{authority}");
        }
    }

    #[test]
    fn texts_that_are_not_hosts_are_refused() {
        let long_label = "a".repeat(64);
        let long_host = ["a".repeat(60).as_str(); 5].join(".");
        for authority in [
            "",
            ".",
            "..",
            ":80",
            "a..b",
            ".a",
            "a b",
            "a/b",
            "user@a",
            "a:b",
            "a:123456",
            "a:1:2",
            "::1",
            "[::1",
            "[a]",
            "[::1]x",
            "[::1]:x",
            "a%41",
            "é.com",
            "a\0",
            "a,b",
            "*.a",
            &long_label,
            &long_host,
        ] {
            assert_eq!(normalize_host(authority), None, "{authority}");
        }
    }

    #[test]
    fn wildcards_cover_subdomains_only() {
        let pattern = HostPattern::parse("*.example.com").unwrap();
        for (host, expected) in
            [("a.example.com", true), ("a.b.example.com", true), ("example.com", false), ("aexample.com", false)]
        {
            assert_eq!(pattern.matches(Some(host)), expected, "{host}");
        }
        assert!(!pattern.matches(None));
    }

    #[test]
    fn patterns_that_are_not_in_normal_form_are_refused() {
        for text in ["", "*", "*.", "a.*.com", "Example.com", "example.com:443", "example.com.", "*.[::1]", "a/b"] {
            assert!(HostPattern::parse(text).is_err(), "{text}");
        }
    }
}
