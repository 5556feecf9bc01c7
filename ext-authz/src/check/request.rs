//! Envoy's `CheckRequest` with only the fields that a check reads.
//!
//! The messages have the same names and field numbers as Envoy's. prost skips all other fields, even malformed ones. To save copies
//! and hash maps, texts share the buffer of the request, and a map is a list of entries, which has the same encoding.
//!
//! Invariant: whatever Envoy's own definition can decode, ours decodes to the same content. The only exception: ours may refuse an
//! entry of a map with a wrong wire type. A property test compares the two definitions.

use crate::rules::RequestTarget;
use bytes::Bytes;
use prost::Message;
use std::str::from_utf8;

/// Envoy's question: may this request pass?
#[derive(Clone, PartialEq, Message)]
pub struct CheckRequest {
    #[prost(message, optional, tag = "1")]
    attributes: Option<AttributeContext>,
}

#[derive(Clone, PartialEq, Message)]
struct AttributeContext {
    #[prost(message, optional, tag = "4")]
    request: Option<Request>,
    #[prost(message, repeated, tag = "10")]
    context_extensions: Vec<Entry>,
}

#[derive(Clone, PartialEq, Message)]
struct Request {
    #[prost(message, optional, tag = "2")]
    http: Option<HttpRequest>,
}

/// The request that the client sent to Envoy.
#[derive(Clone, PartialEq, Message)]
pub struct HttpRequest {
    #[prost(bytes = "bytes", tag = "2")]
    method: Bytes,
    #[prost(message, repeated, tag = "3")]
    headers: Vec<Entry>,
    #[prost(bytes = "bytes", tag = "4")]
    path: Bytes,
    #[prost(bytes = "bytes", tag = "5")]
    host: Bytes,
    /// The body as text, in which Envoy has replaced what is not UTF-8.
    #[prost(bytes = "bytes", tag = "11")]
    body: Bytes,
    /// The body as the client has sent it. Envoy uses one of these two fields, and none for a request without a body.
    #[prost(bytes = "bytes", tag = "12")]
    raw_body: Bytes,
    #[prost(message, optional, tag = "13")]
    header_map: Option<HeaderMap>,
}

/// An entry of a map from text to text. A later entry replaces an earlier one with the same key.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Entry {
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
}

#[derive(Clone, PartialEq, Message)]
struct HeaderMap {
    #[prost(message, repeated, tag = "1")]
    headers: Vec<HeaderValue>,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct HeaderValue {
    #[prost(bytes = "bytes", tag = "1")]
    key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    value: Bytes,
    #[prost(bytes = "bytes", tag = "3")]
    raw_value: Bytes,
}

/// Envoy adds this header to a check with a body, and says whether a part of the body is missing.
pub const PARTIAL_BODY_HEADER: &str = "x-envoy-auth-partial-body";

/// The HTTP request to check, with the context extensions of its route.
#[derive(Debug, Clone, Copy)]
pub struct CheckInput<'a> {
    pub http: &'a HttpRequest,
    pub extensions: ContextExtensions<'a>,
}

impl CheckRequest {
    /// The input of the check. `None` if this is not an HTTP request, or if the name of a header is not UTF-8.
    pub fn http(&self) -> Option<CheckInput<'_>> {
        let attributes = self.attributes.as_ref()?;
        let http = attributes.request.as_ref()?.http.as_ref()?;
        let names_are_texts = http.all_headers().all(|header| from_utf8(header.name).is_ok());
        let extensions = ContextExtensions(&attributes.context_extensions);
        names_are_texts.then_some(CheckInput { http, extensions })
    }
}

impl HttpRequest {
    /// The method. `None` if it is not UTF-8.
    pub fn method(&self) -> Option<&str> {
        from_utf8(&self.method).ok()
    }

    /// The method, host and path, which select a rule. `None` if one of them is not UTF-8.
    pub fn target(&self) -> Option<RequestTarget<'_>> {
        let [method, host, path] = [&self.method, &self.host, &self.path].map(|bytes| from_utf8(bytes).ok());
        Some(RequestTarget { method: method?, host: host?, path: path? })
    }

    /// The whole body, as the client has sent it; empty if the request has none. The error says what Envoy must be told to send it.
    pub fn body(&self) -> Result<&[u8], &'static str> {
        if !self.body.is_empty() {
            return Err("the proxy sends bodies as text: set `pack_as_bytes` in `with_request_body`");
        }
        let [partial, repeated] = first_two(self.all_headers(), PARTIAL_BODY_HEADER);
        let is_whole = repeated.is_none() && partial.is_some_and(|partial| partial.value == b"false");
        if self.raw_body.is_empty() || is_whole {
            Ok(&self.raw_body)
        } else {
            Err(
                "the proxy may have sent only a part of the body: do not set `allow_partial_message` in `with_request_body`",
            )
        }
    }

    pub fn path_starts_with(&self, prefix: &str) -> bool {
        self.path.starts_with(prefix.as_bytes())
    }

    /// All headers. Envoy sends them as a map or as a list, depending on its configuration. If the map has a name several times,
    /// only the last entry counts: see [`first_two`].
    pub fn all_headers(&self) -> impl Iterator<Item = Header<'_>> + Clone {
        let from_map =
            self.headers.iter().map(|entry| Header { name: &entry.key, value: &entry.value, is_in_map: true });
        let from_list = self.header_map.iter().flat_map(|map| &map.headers).map(|header| {
            let value = if header.raw_value.is_empty() { &header.value } else { &header.raw_value };
            Header { name: &header.key, value, is_in_map: false }
        });
        from_map.chain(from_list)
    }
}

#[derive(Debug, Clone, Copy)]
pub struct Header<'a> {
    /// The name as Envoy sent it: usually in lower case, but we do not rely on that.
    pub name: &'a [u8],
    pub value: &'a [u8],
    /// Whether the header comes from the map, where a later entry with the same name replaces an earlier one.
    pub is_in_map: bool,
}

/// The first two headers with a name, in upper or lower case. Two are enough to see that a header is repeated. In the map, a later
/// entry replaces an earlier one of the same spelling; all other headers count as further ones.
pub fn first_two<'a>(headers: impl Iterator<Item = Header<'a>>, name: &str) -> [Option<Header<'a>>; 2] {
    let mut found = [None; 2];
    for header in headers.filter(|header| header.name.eq_ignore_ascii_case(name.as_bytes())) {
        let replaces = |earlier: Header<'_>| earlier.is_in_map && header.is_in_map && earlier.name == header.name;
        if let Some(place) = found.iter_mut().find(|place| place.is_none_or(replaces)) {
            *place = Some(header);
        }
    }
    found
}

/// The context extensions of the route: keys and values in the configuration of Envoy.
#[derive(Debug, Clone, Copy)]
pub struct ContextExtensions<'a>(&'a [Entry]);

impl<'a> ContextExtensions<'a> {
    /// The names and values. Of entries with the same name, only the last one counts. Each entry is compared with all later ones, so
    /// callers limit the number of entries first.
    pub fn iter(self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone {
        let is_last_of_its_name = move |(place, entry): &(usize, &Entry)| {
            let mut later = self.0.iter().skip(place + 1);
            !later.any(|later| later.key == entry.key)
        };
        self.0.iter().enumerate().filter(is_last_of_its_name).map(|(_, entry)| (&entry.key[..], &entry.value[..]))
    }

    /// The number of entries, with those that do not count.
    pub const fn len(self) -> usize {
        self.0.len()
    }

    pub const fn is_empty(self) -> bool {
        self.0.is_empty()
    }
}
