//! URLs of webhook targets, and their validation without name resolution.

use countersign_identity::names::is_printable;
use std::fmt;
use url::{Host, Url};

/// Of the ports below 1024, only 443, and 80 for http, are allowed: the others belong to services such as SSH.
const HTTPS_PORT: u16 = 443;

/// The lowest port that unprivileged processes can listen on.
const FIRST_UNPRIVILEGED_PORT: u16 = 1024;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetUrl(Url);

/// Error for an invalid target URL. The message states the requirement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidUrl(&'static str);

impl TargetUrl {
    /// Maximum number of characters.
    pub const MAX_LENGTH: usize = 2048;

    /// Parses a URL. Accepts http too: `AddressGuard` allows it only for networks that the operator has listed. `AddressGuard`
    /// checks the addresses of the host when a target is saved, and for every connection.
    pub fn parse(text: &str) -> Result<Self, InvalidUrl> {
        let malformed = InvalidUrl("must be an https:// URL of at most 2048 characters");
        if text.chars().count() > Self::MAX_LENGTH || text.contains(' ') || !is_printable(text) {
            return Err(malformed);
        }
        let url: Url = text.parse().map_err(|_| malformed)?;
        if !["https", "http"].contains(&url.scheme()) || url.host_str().is_none_or(str::is_empty) {
            return Err(malformed);
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(InvalidUrl(
                "must not contain a user name or password: verify the signature of deliveries instead",
            ));
        }
        if url.fragment().is_some() {
            return Err(InvalidUrl("must not have a fragment (#…), because fragments are not sent"));
        }
        // We store the URL in its normalized form, which may be longer because of punycode and percent-encoding.
        if url.as_str().len() > Self::MAX_LENGTH {
            return Err(malformed);
        }
        let port = url.port_or_known_default().unwrap_or_default();
        let plaintext = url.scheme() == "http";
        if port == HTTPS_PORT || port >= FIRST_UNPRIVILEGED_PORT || (plaintext && port == 80) {
            Ok(Self(url))
        } else {
            Err(InvalidUrl("must have port 443, or a port from 1024 up"))
        }
    }

    /// The parsed URL.
    pub const fn as_url(&self) -> &Url {
        &self.0
    }

    /// The host of the URL.
    pub fn host(&self) -> Host<&str> {
        self.0.host().unwrap_or(Host::Domain(""))
    }

    /// Whether the scheme is `http`, without encryption.
    pub fn is_plaintext(&self) -> bool {
        self.0.scheme() == "http"
    }
}

impl fmt::Display for TargetUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_only_http_urls_without_credentials_or_fragment() {
        for good in
            ["https://a.example/hook?x=1", "https://a.example:8443", "http://10.0.0.1/", "https://[2001:db8::1]/"]
        {
            assert!(TargetUrl::parse(good).is_ok(), "{good}");
        }
        let long = format!("https://a.example/{}", "a".repeat(TargetUrl::MAX_LENGTH));
        for wrong in [
            "",
            "a.example",
            "ftp://a.example/",
            "file:///etc/passwd",
            "https://",
            "https://u@a.example/",
            "https://:p@a.example/",
            "https://a.example/#x",
            "https://a.example:22/",
            "https://a.example:0/",
            "https://a.example:99999/",
            " https://a.example/",
            "https://a.example/\n",
            "https://a b/",
            "https://a.example/\u{202e}",
            &long,
        ] {
            assert!(TargetUrl::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn normalized_url_parses_to_itself() {
        let encoded = format!("https://büro.example:8443/{}?q=\"<>{{}}`", "é".repeat(300));
        let url = TargetUrl::parse(&encoded).unwrap();
        assert_eq!(TargetUrl::parse(&url.to_string()), Ok(url));
        for longer in ["é".repeat(1500), "\"".repeat(1500)] {
            assert!(TargetUrl::parse(&format!("https://a.example/{longer}")).is_err());
        }
    }

    #[test]
    fn all_notations_of_an_ipv4_address_are_normalized() {
        for spelling in ["https://0177.0.0.1/", "https://2130706433/", "https://0x7f.1/", "https://127.1/"] {
            let url = TargetUrl::parse(spelling).unwrap();
            assert_eq!(url.host().to_string(), "127.0.0.1", "{spelling}");
        }
    }
}
