//! Checks the headers that repeat the method and the name of an MCP message, and the headers that say how it is encoded.
//!
//! A service or another proxy may rely on these headers, so a request is refused if they suggest another message than its body has.

use crate::{
    check::request::{HttpRequest, first_two},
    rules::McpRequest,
};
use base64::{Engine, prelude::BASE64_STANDARD};

const MEDIA_TYPE: &[u8] = b"application/json";

/// The only accepted parameter of `Content-Type`, without and with quotes.
const UTF_8: [&[u8]; 2] = [b"charset=utf-8", b"charset=\"utf-8\""];

const METHOD_HEADER: &str = "mcp-method";

/// The header with the name of a tool or prompt, or with the URI of a resource.
const NAME_HEADER: &str = "mcp-name";

/// The texts before and after a name in Base64, which clients use for names that a header cannot contain.
const BASE64_MARKS: (&[u8], &[u8]) = (b"=?base64?", b"?=");

/// Refuses headers that announce a body, or a change to a protocol whose messages the sidecar would not see, such as `WebSocket`.
pub fn check_absence_of_body(http: &HttpRequest) -> Result<(), &'static str> {
    let announces_body = |name: &[u8], value: &[u8]| {
        let has_length = name.eq_ignore_ascii_case(b"content-length") && value != b"0";
        has_length || [&b"transfer-encoding"[..], b"upgrade"].iter().any(|other| name.eq_ignore_ascii_case(other))
    };
    let has_body = http.all_headers().any(|header| announces_body(header.name, header.value));
    if has_body { Err("a request without an MCP message has a body, or changes the protocol") } else { Ok(()) }
}

/// Requires JSON in UTF-8 without a content coding, because the sidecar reads every message like this. A service that decodes the same bytes
/// with another charset, such as UTF-7, would read another message.
pub fn check_encoding(http: &HttpRequest) -> Result<(), &'static str> {
    let [Some(content_type), None] = first_two(http.all_headers(), "content-type") else {
        return Err("the header `Content-Type` must occur once");
    };
    let mut parts = content_type.value.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
    let is_json = parts.next().is_some_and(|essence| essence.eq_ignore_ascii_case(MEDIA_TYPE));
    let is_utf_8 = |parameter: &[u8]| UTF_8.iter().any(|accepted| parameter.eq_ignore_ascii_case(accepted));
    if !is_json || !parts.all(is_utf_8) {
        return Err("the header `Content-Type` must be application/json, with no parameter except charset=utf-8");
    }
    let mut codings = first_two(http.all_headers(), "content-encoding").into_iter().flatten();
    if !codings.all(|coding| coding.value.trim_ascii().eq_ignore_ascii_case(b"identity")) {
        return Err("the message must have no `Content-Encoding`");
    }
    Ok(())
}

/// Compares the headers with the request. The error says which header disagrees. `Mcp-Name` is refused for methods whose name is not
/// read, such as those of the tasks extension of MCP.
pub fn check_agreement(http: &HttpRequest, request: McpRequest<'_>) -> Result<(), &'static str> {
    let (method, name) = match request {
        McpRequest::Session | McpRequest::Response => (None, None),
        McpRequest::Method(method) => (Some(method), None),
        McpRequest::Named(naming, name) => (Some(naming.method), Some(name)),
    };
    let is_method = |value: &[u8]| method.is_some_and(|method| value == method.as_bytes());
    if !agrees(http, METHOD_HEADER, is_method) {
        return Err("the header `Mcp-Method` is repeated, or disagrees with the MCP message");
    }
    let is_name = |value: &[u8]| name.is_some_and(|name| is_encoding_of(name.as_bytes(), value));
    if !agrees(http, NAME_HEADER, is_name) {
        return Err("the header `Mcp-Name` is repeated, or disagrees with the MCP message");
    }
    Ok(())
}

/// Whether a request has no header with this name, or exactly one, with the right value.
fn agrees(http: &HttpRequest, name: &str, is_right: impl FnOnce(&[u8]) -> bool) -> bool {
    match first_two(http.all_headers(), name) {
        [None, _] => true,
        [Some(header), None] => is_right(header.value),
        [Some(_), Some(_)] => false,
    }
}

/// Whether the value of a header is the name, as it is or in Base64.
fn is_encoding_of(name: &[u8], value: &[u8]) -> bool {
    let (prefix, suffix) = BASE64_MARKS;
    match value.strip_prefix(prefix).and_then(|value| value.strip_suffix(suffix)) {
        Some(encoded) => BASE64_STANDARD.decode(encoded).is_ok_and(|decoded| decoded == name),
        None => value == name,
    }
}
