//! The metadata of protected resources (RFC 9728), which the control plane and the sidecar serve.

use serde_json::json;

/// The path under which the host of a resource serves its metadata. The path of the resource follows it in the URL.
pub const METADATA_PATH: &str = "/.well-known/oauth-protected-resource";

/// The metadata document of a resource. `issuer` must be the `issuer` in the metadata of the authorization server, byte for byte.
///
/// The document does not list scopes: common clients ask for all scopes that it lists, and their tokens would be narrowed to these.
pub fn metadata_document(resource: &str, issuer: &str) -> String {
    let document = json!({
        "resource": resource,
        "authorization_servers": [issuer],
        "bearer_methods_supported": ["header"],
    });
    document.to_string()
}
