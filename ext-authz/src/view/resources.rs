//! The resource URIs of a service (RFC 8707), and their metadata, which clients read to find the control plane (RFC 9728).
//!
//! Everything that a response contains is built when the settings of the service arrive, so that a check only compares texts.

use countersign_identity::protected_resource::{METADATA_PATH, metadata_document};
use std::sync::Arc;

/// A resource URI of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    pub uri: Box<str>,
    is_https: bool,
    /// Host and port, without the default port.
    authority: Box<str>,
    /// The path without a slash at its end; empty for the host itself.
    path: Box<str>,
    /// The URL of the metadata, on the host of the resource.
    pub metadata_url: Box<str>,
    /// The metadata, as JSON.
    pub document: Box<str>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resources(Arc<[Resource]>);

impl Resource {
    /// Parses a resource URI in the form that the control plane sends.
    fn parse(uri: &str, issuer: &str) -> Option<Self> {
        let (scheme, rest) = uri.split_once("://")?;
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        // A denial contains the metadata URL in quotes, so the URL must not contain any.
        let is_quotable = uri.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\');
        if !is_quotable || authority.is_empty() || path.ends_with('/') || !["http", "https"].contains(&scheme) {
            return None;
        }
        Some(Self {
            uri: uri.into(),
            is_https: scheme == "https",
            authority: authority.into(),
            path: path.into(),
            metadata_url: format!("{scheme}://{authority}{METADATA_PATH}{path}").into(),
            document: metadata_document(uri, issuer).into(),
        })
    }

    /// Whether a request was sent to the authority of the resource. A proxy may have removed the port.
    fn has_authority(&self, requested: &str) -> bool {
        let default_port = if self.is_https { ":443" } else { ":80" };
        let requested = requested.strip_suffix(default_port).unwrap_or(requested);
        let without_port = || self.authority.rsplit_once(':').map_or(&*self.authority, |(host, _)| host);
        requested.eq_ignore_ascii_case(&self.authority) || requested.eq_ignore_ascii_case(without_port())
    }

    /// Whether a path is the path of the resource, or below it.
    fn contains_path(&self, path: &str) -> bool {
        let rest = path.strip_prefix(&*self.path);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '?']))
    }
}

impl Resources {
    /// Parses resource URIs in the form that the control plane sends. Returns the first that is malformed.
    pub fn parse<'a>(uris: &'a [String], issuer: &str) -> Result<Self, &'a str> {
        uris.iter().map(|uri| Resource::parse(uri, issuer).ok_or(&**uri)).collect::<Result<_, _>>().map(Self)
    }

    pub fn uris(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|resource| &*resource.uri)
    }

    /// The resource that a request is for. If several contain its path, the one with the longest path wins. If several have this
    /// path, one with the port of the request wins.
    pub fn of_request(&self, authority: &str, path: &str) -> Option<&Resource> {
        let containing = self.0.iter().filter(|it| it.has_authority(authority) && it.contains_path(path));
        containing.max_by_key(|resource| (resource.path.len(), resource.authority.eq_ignore_ascii_case(authority)))
    }

    /// The resource whose metadata a request is for.
    pub fn of_metadata_request(&self, authority: &str, path: &str) -> Option<&Resource> {
        let resource_path = path.split('?').next()?.strip_prefix(METADATA_PATH)?;
        let resource_path = resource_path.strip_suffix('/').unwrap_or(resource_path);
        self.0.iter().find(|resource| *resource.path == *resource_path && resource.has_authority(authority))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resources(uris: &[&str]) -> Resources {
        let uris: Vec<_> = uris.iter().map(ToString::to_string).collect();
        Resources::parse(&uris, "https://issuer.example").unwrap()
    }

    #[test]
    fn a_request_is_for_the_resource_with_the_longest_path() {
        let resources = resources(&["https://api.example", "https://api.example/mcp", "http://127.0.0.1:8080/mcp"]);
        for (authority, path, uri) in [
            ("api.example", "/", Some("https://api.example")),
            ("API.example:443", "/mcp", Some("https://api.example/mcp")),
            ("api.example", "/mcp/tools?a=b", Some("https://api.example/mcp")),
            ("api.example", "/mcp?a", Some("https://api.example/mcp")),
            ("api.example", "/mcpx", Some("https://api.example")),
            ("127.0.0.1:8080", "/mcp", Some("http://127.0.0.1:8080/mcp")),
            ("127.0.0.1", "/mcp", Some("http://127.0.0.1:8080/mcp")),
            ("127.0.0.1:8081", "/mcp", None),
            ("127.0.0.1:8080", "/", None),
            ("api.example:80", "/", None),
            ("other.example", "/mcp", None),
        ] {
            assert_eq!(resources.of_request(authority, path).map(|resource| &*resource.uri), uri, "{authority}{path}");
        }
    }

    #[test]
    fn metadata_is_found_by_its_exact_path() {
        let resources = resources(&["https://api.example/mcp"]);
        let metadata =
            |path: &str| resources.of_metadata_request("api.example", path).map(|resource| &*resource.metadata_url);
        let url = "https://api.example/.well-known/oauth-protected-resource/mcp";
        assert_eq!(metadata("/.well-known/oauth-protected-resource/mcp"), Some(url));
        assert_eq!(metadata("/.well-known/oauth-protected-resource/mcp/?a"), Some(url));
        for other in ["/.well-known/oauth-protected-resource", "/.well-known/oauth-protected-resource/mcp/a", "/mcp"] {
            assert_eq!(metadata(other), None, "{other}");
        }
    }

    #[test]
    fn malformed_uris_are_refused() {
        for uri in ["", "api.example", "ftp://api.example", "https://", "https://api.example/", "https://a/\"b"] {
            assert_eq!(Resources::parse(&[uri.to_owned()], "https://issuer.example"), Err(uri), "{uri}");
        }
    }
}
