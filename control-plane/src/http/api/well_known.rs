//! `/.well-known/…`: the published signing keys and the server metadata. The responses of the endpoints under `/.well-known/`
//! are cacheable.

use crate::{
    http::{
        api::prelude::*,
        middleware::conditional_get::{CacheableContent, DEFAULT_MAX_AGE},
    },
    operations::{Context, published_keys},
};
use axum::{
    extract::Path,
    http::{HeaderMap, HeaderValue},
    response::Response,
};
use serde_json::json;
use url::Url;

/// Authorization server metadata (RFC 8414).
#[derive(Serialize, ToSchema)]
pub struct ServerMetadata {
    /// `iss` claim of all access tokens.
    #[schema(example = "https://countersign.example")]
    issuer: String,
    /// URL that refuses every authorization request. Clients that need no authorization endpoint insist on its name.
    #[schema(example = "https://countersign.example/oauth/authorize")]
    authorization_endpoint: String,
    /// URL for requesting tokens (RFC 6749).
    #[schema(example = "https://countersign.example/oauth/token")]
    token_endpoint: String,
    /// `private_key_jwt`: agents sign a client assertion. `none`: a refresh needs nothing but the refresh token.
    #[schema(example = json!(["private_key_jwt", "none"]))]
    token_endpoint_auth_methods_supported: [&'static str; 2],
    /// Algorithms of client assertions.
    #[schema(example = json!(["ES256"]))]
    token_endpoint_auth_signing_alg_values_supported: [&'static str; 1],
    /// URL of the keys that sign access tokens.
    #[schema(example = "https://countersign.example/.well-known/jwks.json")]
    jwks_uri: String,
    /// URL for verifying tokens (RFC 7662).
    #[schema(example = "https://countersign.example/oauth/introspect")]
    introspection_endpoint: String,
    /// Services authenticate with their id and one of their API keys.
    #[schema(example = json!(["client_secret_basic", "client_secret_post"]))]
    introspection_endpoint_auth_methods_supported: [&'static str; 2],
    /// URL for revoking tokens (RFC 7009).
    #[schema(example = "https://countersign.example/oauth/revoke")]
    revocation_endpoint: String,
    /// `none`: revoking a token requires no credential but the token. `private_key_jwt`: the assertion of an agent is ignored.
    #[schema(example = json!(["none", "private_key_jwt", "client_secret_basic", "client_secret_post"]))]
    revocation_endpoint_auth_methods_supported: [&'static str; 4],
    /// Algorithms of client assertions, which are ignored.
    #[schema(example = json!(["ES256"]))]
    revocation_endpoint_auth_signing_alg_values_supported: [&'static str; 1],
    /// Empty: the authorization endpoint refuses every request.
    #[schema(example = json!([]))]
    response_types_supported: [&'static str; 0],
    /// The values of `grant_type` at the token endpoint.
    #[schema(example = json!(["client_credentials", "refresh_token"]))]
    grant_types_supported: [&'static str; 2],
}

impl ServerMetadata {
    fn new(context: &Context) -> Self {
        let issuer = context.issuer();
        let url = |path: &str| format!("{issuer}{path}");
        Self {
            issuer: issuer.to_owned(),
            authorization_endpoint: url("/oauth/authorize"),
            token_endpoint: context.token_endpoint(),
            token_endpoint_auth_methods_supported: ["private_key_jwt", "none"],
            token_endpoint_auth_signing_alg_values_supported: ["ES256"],
            jwks_uri: url("/.well-known/jwks.json"),
            introspection_endpoint: url("/oauth/introspect"),
            introspection_endpoint_auth_methods_supported: ["client_secret_basic", "client_secret_post"],
            revocation_endpoint: url("/oauth/revoke"),
            revocation_endpoint_auth_methods_supported: [
                "none",
                "private_key_jwt",
                "client_secret_basic",
                "client_secret_post",
            ],
            revocation_endpoint_auth_signing_alg_values_supported: ["ES256"],
            response_types_supported: [],
            grant_types_supported: ["client_credentials", "refresh_token"],
        }
    }
}

/// Read the public keys for access tokens
///
/// All keys whose tokens are valid, and the next signing key. Clients can cache the response for the time in
/// `Cache-Control`, at most five minutes: a new key signs nothing before all caches have expired.
#[utoipa::path(
    get, path = "/.well-known/jwks.json", operation_id = "readKeys", tag = "Server", security(()),
    responses(
        (
            status = 200, description = "A JWK set (RFC 7517)", body = schema::JwkSetSchema,
            content_type = "application/jwk-set+json", headers(("ETag", description = "For `If-None-Match`")),
        ),
        (status = 304, description = "Unchanged since the `ETag` in `If-None-Match`"),
        Errors<(PublicAccess,)>,
    )
)]
pub async fn jwks(State(state): State<AppState>, headers: HeaderMap) -> Result<Response, ApiError> {
    let body = json!({ "keys": published_keys(&state.context).await?.to_jwks() }).to_string();
    let content = CacheableContent::new(HeaderValue::from_static("application/jwk-set+json"), body.into());
    Ok(content.response(&headers, state.context.jwks_max_age()))
}

/// Read the server metadata
///
/// OAuth clients find the endpoints of this server with it.
#[utoipa::path(
    get, path = "/.well-known/oauth-authorization-server", operation_id = "readServerMetadata", tag = "Server",
    security(()),
    responses(
        (
            status = 200, description = "Authorization server metadata (RFC 8414)", body = ServerMetadata,
            headers(("ETag", description = "For `If-None-Match`")),
        ),
        (status = 304, description = "Unchanged since the `ETag` in `If-None-Match`"),
        Errors<(InternalOnly,)>,
    )
)]
pub async fn authorization_server(State(state): State<AppState>, headers: HeaderMap) -> Response {
    server_metadata(&state, &headers)
}

/// If the issuer is a URL with a path, clients look for the server metadata here (RFC 8414, section 3.1).
pub async fn authorization_server_with_path(
    State(state): State<AppState>,
    Path(path): Path<String>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let issuer_path = Url::parse(state.context.issuer()).ok();
    let issuer_path = issuer_path.as_ref().map(|url| url.path().trim_matches('/')).filter(|path| !path.is_empty());
    if issuer_path == Some(path.as_str()) { Ok(server_metadata(&state, &headers)) } else { Err(ApiError::not_found()) }
}

fn server_metadata(state: &AppState, headers: &HeaderMap) -> Response {
    let content_type = HeaderValue::from_static("application/json");
    let body = json!(ServerMetadata::new(&state.context)).to_string();
    CacheableContent::new(content_type, body.into()).response(headers, DEFAULT_MAX_AGE)
}
