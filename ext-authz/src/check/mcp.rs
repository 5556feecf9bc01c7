//! Reads an MCP request, and selects its policy by the entries of a rule: the allowed tools, prompts, resources and methods.
//!
//! Depends on `rules`. Invariant: the message alone decides what the request does. A header of the client can make the sidecar refuse a
//! request, but not allow one.

mod headers;

use super::request::HttpRequest;
use crate::{
    policy::Policy,
    rules::{McpRequest, McpRules, ReceivedMessage},
};
use std::sync::Arc;

/// The policy of a rule for an MCP request; `None` if the rule lacks an entry for it. The error says what is wrong with the
/// request.
pub fn select_policy<'r>(rules: &'r McpRules, http: &HttpRequest) -> Result<Option<&'r Arc<Policy>>, &'static str> {
    with_request(http, |request| rules.policy(request))
}

/// The method of the message and the name in it, for explanations. `None` if the request is not valid.
pub fn describe(http: &HttpRequest) -> Option<String> {
    with_request(http, |request| request.to_string()).ok()
}

/// Calls `read` with the MCP request, which borrows from the parsed body. The error says what is wrong with the request.
fn with_request<T>(http: &HttpRequest, read: impl FnOnce(McpRequest<'_>) -> T) -> Result<T, &'static str> {
    let method = http.method().ok_or("the method of the request is not UTF-8 text")?;
    let message = match http.body()? {
        b"" if method == "POST" => {
            return Err("there is no body, or the proxy does not send it: set `with_request_body`");
        }
        b"" => None,
        body => Some(ReceivedMessage::parse(body)?),
    };
    let request = McpRequest::new(method, message.as_ref().map(ReceivedMessage::as_message))?;
    if request == McpRequest::Session {
        headers::check_absence_of_body(http)?;
    } else {
        headers::check_encoding(http)?;
    }
    headers::check_agreement(http, request)?;
    Ok(read(request))
}
