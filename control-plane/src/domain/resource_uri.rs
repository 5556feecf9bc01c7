//! Resource URIs: the URLs under which clients reach a service (RFC 8707, RFC 9728). Token requests name the service by them.

use std::{fmt, sync::Arc};
use url::Url;

/// What a resource URI must be, for error messages.
pub const REQUIREMENT: &str = "must be an http:// or https:// URL of at most 512 bytes, without user name, query, fragment and empty path segments (`//`)";

/// The text is not a resource URI.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{REQUIREMENT}")]
pub struct InvalidResourceUri;

/// A resource URI in its normal form: lower-case scheme and host, no default port, no slash at the end.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ResourceUri {
    text: String,
    /// The host, without port and without a dot at the end.
    host: String,
}

impl ResourceUri {
    /// The maximum length, in bytes.
    pub const MAX_BYTES: usize = 512;

    /// The maximum number of resource URIs of a service.
    pub const MAX_PER_SERVICE: usize = 8;

    /// Parses a URL, and converts it to its normal form.
    pub fn parse(text: &str) -> Result<Self, InvalidResourceUri> {
        let has_only_url_characters = text.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"\\".contains(&byte));
        if text.len() > Self::MAX_BYTES || !has_only_url_characters || text.contains(['?', '#']) {
            return Err(InvalidResourceUri);
        }
        let url: Url = text.parse().map_err(|_| InvalidResourceUri)?;
        let has_user = !url.username().is_empty() || url.password().is_some();
        if !["https", "http"].contains(&url.scheme()) || url.host_str().is_none_or(str::is_empty) || has_user {
            return Err(InvalidResourceUri);
        }
        // Proxies merge slashes, so the sidecar would never see such a path.
        if url.path().contains("//") {
            return Err(InvalidResourceUri);
        }
        let host = url.host_str().unwrap_or_default().trim_end_matches('.').to_owned();
        let text = format!("{}{}", url.origin().ascii_serialization(), url.path().trim_end_matches('/'));
        if text.len() > Self::MAX_BYTES { Err(InvalidResourceUri) } else { Ok(Self { text, host }) }
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The host, without port and without a dot at the end. Unless an administrator allows it, a service must not have a resource
    /// URI at a host where another owner's service has one. The port and the scheme do not matter for this: proxies may remove the
    /// port, and clients may try both schemes.
    pub fn host(&self) -> &str {
        &self.host
    }
}

impl TryFrom<String> for ResourceUri {
    type Error = InvalidResourceUri;

    fn try_from(text: String) -> Result<Self, InvalidResourceUri> {
        Self::parse(&text)
    }
}

/// The resource URIs of a service, in the order in which its owner has listed them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResourceUris(Arc<[ResourceUri]>);

/// Why a list of resource URIs is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidResourceUris {
    /// The item with this index is not a resource URI.
    #[error("item {0} {REQUIREMENT}")]
    Item(usize),
    /// Two items have the same normal form.
    #[error("contains `{0}` twice")]
    Repeated(String),
    /// There are too many.
    #[error("must have at most {} items", ResourceUri::MAX_PER_SERVICE)]
    Count,
}

impl ResourceUris {
    pub fn parse<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Self, InvalidResourceUris> {
        let mut uris: Vec<ResourceUri> = Vec::new();
        for (index, text) in texts.into_iter().enumerate() {
            let uri = ResourceUri::parse(text).map_err(|InvalidResourceUri| InvalidResourceUris::Item(index))?;
            if uris.contains(&uri) {
                return Err(InvalidResourceUris::Repeated(uri.text));
            }
            uris.push(uri);
            if uris.len() > ResourceUri::MAX_PER_SERVICE {
                return Err(InvalidResourceUris::Count);
            }
        }
        Ok(Self(uris.into()))
    }

    pub fn iter(&self) -> std::slice::Iter<'_, ResourceUri> {
        self.0.iter()
    }

    /// Whether the service has no resource URIs.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl TryFrom<String> for ResourceUris {
    type Error = InvalidResourceUris;

    /// The inverse of [`ToString::to_string`].
    fn try_from(text: String) -> Result<Self, InvalidResourceUris> {
        Self::parse(text.split_ascii_whitespace())
    }
}

impl fmt::Display for ResourceUris {
    /// Separated by spaces.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.iter().map(ResourceUri::as_str).collect::<Vec<_>>().join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_have_one_normal_form() {
        for (text, normal) in [
            ("https://api.example", "https://api.example"),
            ("HTTPS://API.example:443/", "https://api.example"),
            ("http://api.example:8080/mcp/", "http://api.example:8080/mcp"),
            ("https://api.example/MCP", "https://api.example/MCP"),
            ("https://[::1]:8443/a/../b", "https://[::1]:8443/b"),
        ] {
            assert_eq!(ResourceUri::parse(text).unwrap().as_str(), normal, "{text}");
        }
        for invalid in [
            "",
            "api.example",
            "ftp://api.example",
            "https://",
            "https://user@api.example",
            "https://api.example/?a",
            "https://api.example/#a",
            "https://api.example/ a",
            "https://api.example/a//b",
            "https://api.example//",
            "https://api.example/\"",
            "https://é.example",
            &format!("https://api.example/{}", "a".repeat(ResourceUri::MAX_BYTES)),
        ] {
            assert_eq!(ResourceUri::parse(invalid), Err(InvalidResourceUri), "{invalid}");
        }
    }

    #[test]
    fn lists_are_bounded_and_have_each_uri_once() {
        let parse = |texts: &[&str]| ResourceUris::parse(texts.iter().copied());
        let uris = parse(&["https://b.example", "https://a.example/mcp"]).unwrap();
        assert_eq!(uris.to_string(), "https://b.example https://a.example/mcp");
        assert_eq!(ResourceUris::try_from(uris.to_string()), Ok(uris));
        assert_eq!(ResourceUris::try_from(String::new()), Ok(ResourceUris::default()));
        assert!(parse(&["https://a.example", "https://A.example/"]).is_err());
        assert_eq!(parse(&["https://a.example", "b"]), Err(InvalidResourceUris::Item(1)));
        let many: Vec<_> =
            (0..=ResourceUri::MAX_PER_SERVICE).map(|port| format!("https://a.example:{}", 8000 + port)).collect();
        assert_eq!(ResourceUris::parse(many.iter().map(String::as_str)), Err(InvalidResourceUris::Count));
    }
}
