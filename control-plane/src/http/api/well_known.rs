//! `/.well-known/…`: the published signing keys and the server metadata. The responses of the endpoints under `/.well-known/`
//! are cacheable.

use crate::{
    http::{
        error::ApiError,
        middleware::conditional_get::{CacheableContent, DEFAULT_MAX_AGE},
        openapi::{
            errors::{Errors, InternalOnly, PublicAccess},
            schema,
        },
        state::AppState,
    },
    operations::published_keys,
};
use axum::{
    extract::State,
    http::{HeaderMap, HeaderValue},
    response::Response,
};
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

/// Authorization server metadata (RFC 8414).
#[derive(Serialize, ToSchema)]
pub struct ServerMetadata {
    /// `iss` claim of all access tokens.
    #[schema(example = "https://countersign.example")]
    issuer: String,
    /// URL of the keys that sign access tokens.
    #[schema(example = "https://countersign.example/.well-known/jwks.json")]
    jwks_uri: String,
    /// URL for revoking tokens (RFC 7009).
    #[schema(example = "https://countersign.example/auth/revoke")]
    revocation_endpoint: String,
    /// `none`: revoking a token requires no credential but the token.
    #[schema(example = json!(["none"]))]
    revocation_endpoint_auth_methods_supported: [&'static str; 1],
    /// Empty: there is no authorization endpoint.
    #[schema(example = json!([]))]
    response_types_supported: [&'static str; 0],
    /// Empty: agents log in with a challenge, which is not an OAuth grant.
    #[schema(example = json!([]))]
    grant_types_supported: [&'static str; 0],
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
/// Agents log in with a challenge, which is not an OAuth grant. There is therefore no token endpoint, and the lists of
/// grant types and response types are empty.
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
    let issuer = state.context.issuer();
    let body = json!(ServerMetadata {
        issuer: issuer.to_owned(),
        jwks_uri: format!("{issuer}/.well-known/jwks.json"),
        revocation_endpoint: format!("{issuer}/auth/revoke"),
        revocation_endpoint_auth_methods_supported: ["none"],
        response_types_supported: [],
        grant_types_supported: [],
    });
    let content_type = HeaderValue::from_static("application/json");
    CacheableContent::new(content_type, body.to_string().into()).response(&headers, DEFAULT_MAX_AGE)
}
