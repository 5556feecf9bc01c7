//! The headers in which clients repeat the method and the name of a message. A service or another proxy may rely on them, so a header
//! that disagrees with the message refuses the request.

use crate::{
    check::{header::first_two, request::HttpRequest},
    rules::McpRequest,
};
use base64::{Engine, prelude::BASE64_STANDARD};

/// The header with the method.
const METHOD_HEADER: &str = "mcp-method";

/// The header with the name of a tool or prompt, or with the URI of a resource.
const NAME_HEADER: &str = "mcp-name";

/// The marks of a value in Base64, which stands for a name that a header cannot contain.
const ENCODED: (&[u8], &[u8]) = (b"=?base64?", b"?=");

/// Compares the headers with the request. The error says which header disagrees. A name without something to compare is refused: so is
/// the `Mcp-Name` of the tasks extension, which Envoy does not report.
pub fn check_agreement(http: &HttpRequest, request: McpRequest<'_>) -> Result<(), &'static str> {
    let (method, name) = match request {
        McpRequest::Session => (None, None),
        McpRequest::Method(method) => (Some(method), None),
        McpRequest::Named(naming, name) => (Some(naming.method), Some(name)),
    };
    let is_method = |value: &[u8]| method.is_some_and(|method| value == method.as_bytes());
    if !agrees(http, METHOD_HEADER, is_method) {
        return Err("the header `Mcp-Method` is repeated, or disagrees with the MCP message");
    }
    let is_name = |value: &[u8]| name.is_some_and(|name| is_encoding_of(name.as_bytes(), value));
    if agrees(http, NAME_HEADER, is_name) {
        Ok(())
    } else {
        Err("the header `Mcp-Name` is repeated, or disagrees with the MCP message")
    }
}

/// Whether a request has no header with this name, or one with the right value. Envoy joins repeated headers with a comma, unless it
/// sends raw headers.
fn agrees(http: &HttpRequest, name: &str, is_right: impl FnOnce(&[u8]) -> bool) -> bool {
    match first_two(http.all_headers(), name) {
        [None, _] => true,
        [Some(header), None] => is_right(header.value),
        [Some(_), Some(_)] => false,
    }
}

fn is_encoding_of(name: &[u8], value: &[u8]) -> bool {
    let (prefix, suffix) = ENCODED;
    match value.strip_prefix(prefix).and_then(|value| value.strip_suffix(suffix)) {
        Some(encoded) => BASE64_STANDARD.decode(encoded).is_ok_and(|decoded| decoded == name),
        None => value == name,
    }
}
