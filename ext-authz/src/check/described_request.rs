//! A request to explain, as an operator describes it to a command, or to the admin port. Invariant: its token is never printed, and
//! only serialized to send it to the admin port.

use super::{Authorizer, CheckRequest, Explanation, request::PARTIAL_BODY_HEADER};
use crate::rules::NamingMethod;
use bytes::Bytes;
use countersign_proto::envoy::service::auth::v3::{
    self, AttributeContext,
    attribute_context::{HttpRequest, Request},
};
use prost::Message;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::json;
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
        let raw_body = mcp_method.map(|method| mcp_body(&method, mcp_name.as_deref())).unwrap_or_default();
        let bearer = token.map(|token| ("authorization", format!("Bearer {}", token.expose_secret())));
        let of_body = [("content-type", "application/json".to_owned()), (PARTIAL_BODY_HEADER, "false".to_owned())];
        let of_body = of_body.into_iter().filter(|_| !raw_body.is_empty());
        let headers = bearer.into_iter().chain(of_body).map(|(name, value)| (name.to_owned(), value)).collect();
        let http = HttpRequest { method, host, path, headers, raw_body, ..HttpRequest::default() };
        let attributes = AttributeContext {
            request: Some(Request { http: Some(http), ..Request::default() }),
            context_extensions,
            ..AttributeContext::default()
        };
        Self { attributes: Some(attributes) }
    }
}

/// The body of a request with this MCP message.
fn mcp_body(method: &str, name: Option<&str>) -> Vec<u8> {
    let parameter = NamingMethod::find(method).map_or("name", |naming| naming.parameter);
    let params = name.map(|name| json!({ parameter: name }));
    json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string().into()
}

impl Authorizer {
    /// Explains the decision about a request, which is encoded and read exactly like a check of Envoy. The metrics do not count it.
    /// `None` if the sidecar cannot read it.
    pub fn explain_described(&self, request: DescribedRequest) -> Option<Explanation> {
        let request = v3::CheckRequest::from(request).encode_to_vec();
        self.explain(&CheckRequest::decode(Bytes::from(request)).ok()?)
    }
}
