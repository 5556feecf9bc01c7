//! A request whose decision is to be explained. Invariant: its token is not printed.

use envoy_types::{
    ext_authz::v3::pb::CheckRequest,
    pb::envoy::service::auth::v3::{
        AttributeContext,
        attribute_context::{HttpRequest, Request},
    },
};
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
    /// The context extensions of the route.
    #[serde(default)]
    pub context_extensions: HashMap<String, String>,
    /// The token; `None` for a request without one.
    #[serde(default)]
    pub token: Option<SecretString>,
}

impl From<ExplainRequest> for CheckRequest {
    fn from(request: ExplainRequest) -> Self {
        let ExplainRequest { method, host, path, context_extensions, token } = request;
        let authorization =
            |token: SecretString| ("authorization".to_owned(), format!("Bearer {}", token.expose_secret()));
        let headers = token.into_iter().map(authorization).collect();
        let http = HttpRequest { method, host, path, headers, ..HttpRequest::default() };
        Self {
            attributes: Some(AttributeContext {
                request: Some(Request { http: Some(http), ..Request::default() }),
                context_extensions,
                ..AttributeContext::default()
            }),
        }
    }
}
