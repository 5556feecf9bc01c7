//! Envoy's `CheckRequest` with the fields that a check reads.
//!
//! The messages have the names and the field numbers of Envoy's, and prost skips all other fields. Texts share the buffer of the
//! request instead of being copied, and a map is the list of its entries, which has the same encoding. So a request is decoded
//! without copies, and without a hash map for its headers. A field that no check reads may be malformed.
//!
//! Invariant: for each message that Envoy's own definition can decode, this one has the same content (a property test).

use super::token_header::Header;
use crate::rules::RequestTarget;
use bytes::Bytes;
use prost::Message;
use std::str::from_utf8;

/// What Envoy asks.
#[derive(Clone, PartialEq, Message)]
pub struct CheckRequest {
    /// Attributes of the request and of its route.
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

/// A request over HTTP.
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
    #[prost(message, optional, tag = "13")]
    header_map: Option<HeaderMap>,
}

/// An entry of a map from text to text. A later entry replaces an earlier one with the same key.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Entry {
    /// The key.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// The value.
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

impl CheckRequest {
    /// A request over HTTP with these context extensions of its route.
    pub fn new<'a>(
        target: RequestTarget<'_>,
        headers: impl Iterator<Item = (&'a str, &'a str)>,
        context_extensions: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Self {
        let entry = |(key, value): (&str, &str)| Entry { key: shared(key), value: shared(value) };
        let http = HttpRequest {
            method: shared(target.method),
            host: shared(target.host),
            path: shared(target.path),
            headers: headers.map(entry).collect(),
            header_map: None,
        };
        let context_extensions = context_extensions.map(entry).collect();
        Self { attributes: Some(AttributeContext { request: Some(Request { http: Some(http) }), context_extensions }) }
    }

    /// The HTTP request and the context extensions of its route. `None` if it is not an HTTP request, or if the name of a header is
    /// not a text.
    pub fn http(&self) -> Option<(&HttpRequest, ContextExtensions<'_>)> {
        let attributes = self.attributes.as_ref()?;
        let http = attributes.request.as_ref()?.http.as_ref()?;
        let names_are_texts = http.all_headers().all(|header| from_utf8(header.name).is_ok());
        names_are_texts.then_some((http, ContextExtensions(&attributes.context_extensions)))
    }
}

fn shared(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

impl HttpRequest {
    /// What the rules file selects rules by. `None` if a part of it is not a text.
    pub fn target(&self) -> Option<RequestTarget<'_>> {
        let [method, host, path] = [&self.method, &self.host, &self.path].map(|bytes| from_utf8(bytes).ok());
        Some(RequestTarget { method: method?, host: host?, path: path? })
    }

    /// The names and values of all headers. Envoy sends headers as a map or as a list, depending on its configuration. Of the entries
    /// of the map with the same name, only the last one counts.
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

/// The context extensions of a route.
#[derive(Debug, Clone, Copy)]
pub struct ContextExtensions<'a>(&'a [Entry]);

impl<'a> ContextExtensions<'a> {
    /// The names and values. Of entries with the same name, only the last one counts.
    pub fn iter(self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone {
        let counts = move |(place, entry): &(usize, &Entry)| {
            let mut later = self.0.iter().skip(place + 1);
            !later.any(|later| later.key == entry.key)
        };
        self.0.iter().enumerate().filter(counts).map(|(_, entry)| (&entry.key[..], &entry.value[..]))
    }

    /// Whether there are none.
    pub const fn is_empty(self) -> bool {
        self.0.is_empty()
    }
}
