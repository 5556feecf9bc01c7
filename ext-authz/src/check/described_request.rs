//! A request to explain, as an operator describes it to a command, or to the admin port. Invariant: its token is never printed, and
//! only serialized to send it to the admin port.

use super::{
    Authorizer, CheckRequest, Explanation,
    mcp::{MCP_FILTER, metadata_of},
};
use crate::rules::McpMessage;
use bytes::Bytes;
use countersign_proto::envoy::{
    config::core::v3::Metadata,
    service::auth::v3::{
        self, AttributeContext,
        attribute_context::{HttpRequest, Request},
    },
};
use prost::Message;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize, Serializer};
use std::collections::HashMap;

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DescribedRequest {
    pub method: String,
    /// The host, with or without port.
    pub host: String,
    /// The path, with or without query.
    pub path: String,
    pub mcp_method: Option<String>,
    /// The name of the tool or prompt, or the URI of the resource, that the MCP message uses.
    pub mcp_name: Option<String>,
    #[serde(default)]
    pub context_extensions: HashMap<String, String>,
    /// The token; `None` for a request without one.
    #[serde(serialize_with = "expose_token")]
    pub token: Option<SecretString>,
}

#[expect(clippy::ref_option, reason = "serde passes a reference to the field")]
fn expose_token<S: Serializer>(token: &Option<SecretString>, serializer: S) -> Result<S::Ok, S::Error> {
    token.as_ref().map(ExposeSecret::expose_secret).serialize(serializer)
}

impl From<DescribedRequest> for v3::CheckRequest {
    /// The check that Envoy would send for the described request.
    fn from(request: DescribedRequest) -> Self {
        let DescribedRequest { method, host, path, mcp_method, mcp_name, context_extensions, token } = request;
        let metadata = mcp_method.map(|method| {
            let message = McpMessage { method: &method, name: mcp_name.as_deref() };
            let filter_metadata = [(MCP_FILTER.to_owned(), metadata_of(message))].into();
            Metadata { filter_metadata, ..Metadata::default() }
        });
        let bearer = token.map(|token| ("authorization".to_owned(), format!("Bearer {}", token.expose_secret())));
        // The sidecar refuses an MCP message with another content type than JSON.
        let json = metadata.is_some().then(|| ("content-type".to_owned(), "application/json".to_owned()));
        let headers = bearer.into_iter().chain(json).collect();
        let http = HttpRequest { method, host, path, headers, ..HttpRequest::default() };
        let attributes = AttributeContext {
            request: Some(Request { http: Some(http), ..Request::default() }),
            context_extensions,
            metadata_context: metadata,
            ..AttributeContext::default()
        };
        Self { attributes: Some(attributes) }
    }
}

impl Authorizer {
    /// Explains the decision about a request, which is encoded and read exactly like a check of Envoy. The metrics do not count it.
    /// `None` if the sidecar cannot read it.
    pub fn explain_described(&self, request: DescribedRequest) -> Option<Explanation> {
        let request = v3::CheckRequest::from(request).encode_to_vec();
        self.explain(&CheckRequest::decode(Bytes::from(request)).ok()?)
    }
}
