//! Reads an MCP request, and selects its policy by the entries of a rule: the allowed tools, prompts, resources and methods.
//!
//! Depends on `rules`. Invariant: the sidecar decides only by what Envoy's MCP filter has parsed. The sidecar does not see the
//! body, and a header of the client can make it refuse a request, but not allow one.

mod headers;
mod metadata;

use super::request::{CheckInput, HttpRequest};
use crate::{
    policy::Policy,
    rules::{McpRequest, McpRules},
};
use metadata::McpMetadata;
use std::sync::Arc;

pub use metadata::{MCP_FILTER, metadata_of};

/// The policy of a rule for an MCP request; `None` if the rule lacks an entry for it. The error says what is wrong with the
/// request.
pub fn select_policy<'r>(
    rules: &'r McpRules,
    request: CheckInput<'_>,
) -> Result<Option<&'r Arc<Policy>>, &'static str> {
    with_request(request, |mcp| rules.policy(mcp))?
}

/// The method of the message and the name in it, for explanations. `None` if the request is not valid.
pub fn describe(request: CheckInput<'_>) -> Option<String> {
    with_request(request, |mcp| mcp.to_string()).ok()
}

/// Calls `read` with the MCP request, which borrows from the decoded metadata. The error says what is wrong with the request.
fn with_request<T>(request: CheckInput<'_>, read: impl FnOnce(McpRequest<'_>) -> T) -> Result<T, &'static str> {
    let CheckInput { http, extensions: _, mcp } = request;
    let metadata = mcp.map(McpMetadata::decode_parts).transpose()?;
    let message = metadata.as_ref().map(McpMetadata::message).transpose()?;
    let method = http.method().ok_or("the method of the request is not UTF-8 text")?;
    let mcp_request = McpRequest::new(method, message)?;
    if mcp_request == McpRequest::Session && may_have_body(http) {
        return Err("a request without an MCP message has a body");
    }
    if mcp_request != McpRequest::Session {
        headers::check_encoding(http)?;
    }
    headers::check_agreement(http, mcp_request)?;
    Ok(read(mcp_request))
}

/// Whether the headers announce a body. Envoy removes `Transfer-Encoding`, so we miss a body without a length, unless Envoy's buffer
/// filter has set the length.
fn may_have_body(http: &HttpRequest) -> bool {
    let announces_body = |name: &[u8], value: &[u8]| {
        let has_length = name.eq_ignore_ascii_case(b"content-length") && value != b"0";
        has_length || name.eq_ignore_ascii_case(b"transfer-encoding")
    };
    http.all_headers().any(|header| announces_body(header.name, header.value))
}
