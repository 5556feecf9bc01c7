//! The URL of a target: what can be said of it without asking anybody.

use countersign_identity::names::is_printable;
use std::fmt;
use url::{Host, Url};

/// The port of HTTPS. Beside it, ports that only the operator of a host may open are not connected to.
const HTTPS: u16 = 443;

/// From here on, anybody may listen.
const FIRST_FREE_PORT: u16 = 1024;

/// Where a target is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetUrl(Url);

/// Why a URL is not one that events are sent to; the text says what it must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidUrl(&'static str);

impl TargetUrl {
    /// The most characters it may have.
    pub const LONGEST: usize = 2048;

    /// Reads a URL. Whether its host may be connected to is asked for elsewhere, again and again.
    pub fn parse(text: &str) -> Result<Self, InvalidUrl> {
        let form = InvalidUrl("must be an https:// URL of at most 2048 characters");
        if text.chars().count() > Self::LONGEST || text.contains(' ') || !is_printable(text) {
            return Err(form);
        }
        let url: Url = text.parse().map_err(|_| form)?;
        if !["https", "http"].contains(&url.scheme()) || url.host_str().is_none_or(str::is_empty) {
            return Err(form);
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(InvalidUrl("must not hold a user name or a password: deliveries are signed instead"));
        }
        if url.fragment().is_some() {
            return Err(InvalidUrl("must not have a fragment (#…), which is never sent"));
        }
        // What is written in another alphabet is longer as it is sent, and as it is kept.
        if url.as_str().len() > Self::LONGEST {
            return Err(form);
        }
        let port = url.port_or_known_default().unwrap_or_default();
        let plain = url.scheme() == "http";
        if port == HTTPS || port >= FIRST_FREE_PORT || (plain && port == 80) {
            Ok(Self(url))
        } else {
            Err(InvalidUrl("must have the port 443, or one from 1024 on"))
        }
    }

    /// The URL.
    pub const fn as_url(&self) -> &Url {
        &self.0
    }

    /// Its host.
    pub fn host(&self) -> Host<&str> {
        self.0.host().unwrap_or(Host::Domain(""))
    }

    /// Whether nothing is encrypted on the way.
    pub fn is_plain(&self) -> bool {
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
    fn only_web_servers_are_named() {
        for good in
            ["https://a.example/hook?x=1", "https://a.example:8443", "http://10.0.0.1/", "https://[2001:db8::1]/"]
        {
            assert!(TargetUrl::parse(good).is_ok(), "{good}");
        }
        let long = format!("https://a.example/{}", "a".repeat(TargetUrl::LONGEST));
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
    fn what_is_kept_reads_back() {
        let odd = format!("https://büro.example:8443/{}?q=\"<>{{}}`", "é".repeat(300));
        let url = TargetUrl::parse(&odd).unwrap();
        assert_eq!(TargetUrl::parse(&url.to_string()), Ok(url));
        for longer in ["é".repeat(1500), "\"".repeat(1500)] {
            assert!(TargetUrl::parse(&format!("https://a.example/{longer}")).is_err());
        }
    }

    #[test]
    fn every_spelling_of_an_address_is_that_address() {
        for spelling in ["https://0177.0.0.1/", "https://2130706433/", "https://0x7f.1/", "https://127.1/"] {
            let url = TargetUrl::parse(spelling).unwrap();
            assert_eq!(url.host().to_string(), "127.0.0.1", "{spelling}");
        }
    }
}
