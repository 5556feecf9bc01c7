//! A request whose decision is to be explained. Invariant: its token is not printed.

use super::request::CheckRequest;
use crate::rules::{McpMessage, RequestTarget};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use std::collections::HashMap;

/// The request to explain, and its token.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExplainRequest {
    /// The method.
    pub method: String,
    /// The host, with or without port.
    pub host: String,
    /// The path, with or without query.
    pub path: String,
    /// The method of the MCP message.
    #[serde(default)]
    pub mcp_method: Option<String>,
    /// The name that the MCP message uses: of a tool or prompt, or the URI of a resource.
    #[serde(default)]
    pub mcp_name: Option<String>,
    /// The context extensions of the route.
    #[serde(default)]
    pub context_extensions: HashMap<String, String>,
    /// The token; `None` for a request without one.
    #[serde(default)]
    pub token: Option<SecretString>,
}

impl From<ExplainRequest> for CheckRequest {
    fn from(request: ExplainRequest) -> Self {
        let ExplainRequest { method, host, path, mcp_method, mcp_name, context_extensions, token } = request;
        let target = RequestTarget { method: &method, host: &host, path: &path };
        let authorization = token.map(|token| format!("Bearer {}", token.expose_secret()));
        let headers = authorization.iter().map(|authorization| ("authorization", authorization.as_str()));
        let extensions = context_extensions.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let request = Self::new(target, headers, extensions);
        match &mcp_method {
            Some(method) => request.with_mcp_message(McpMessage { method, name: mcp_name.as_deref() }),
            None => request,
        }
    }
}
