//! `/.well-known/…`: what others may read about us and keep for a while.

use crate::{
    http::{
        error::ApiError,
        middleware::caching,
        openapi::{
            errors::{Anybody, Errors, Nothing},
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

/// Where things are at this server (RFC 8414).
#[derive(Serialize, ToSchema)]
pub struct ServerMetadata {
    /// The `iss` of every token.
    #[schema(example = "https://countersign.example")]
    issuer: String,
    /// The keys that sign them.
    #[schema(example = "https://countersign.example/.well-known/jwks.json")]
    jwks_uri: String,
    /// Where a token is ended (RFC 7009).
    #[schema(example = "https://countersign.example/auth/revoke")]
    revocation_endpoint: String,
    /// `none`: whoever has a token may end it.
    #[schema(example = json!(["none"]))]
    revocation_endpoint_auth_methods_supported: [&'static str; 1],
    /// None.
    #[schema(example = json!([]))]
    response_types_supported: [&'static str; 0],
    /// None: an agent logs in with a challenge.
    #[schema(example = json!([]))]
    grant_types_supported: [&'static str; 0],
}

/// The keys that sign access tokens
///
/// All keys whose tokens are believed, and the next one. A client may keep them for as long as `Cache-Control` says, at
/// most five minutes, and then ask whether they changed: no key signs before that is over.
#[utoipa::path(
    get, path = "/.well-known/jwks.json", operation_id = "readKeys", tag = "Server", security(()),
    responses(
        (
            status = 200, description = "A JWK set (RFC 7517)", body = schema::KeySet,
            content_type = "application/jwk-set+json", headers(("ETag", description = "For `If-None-Match`")),
        ),
        (status = 304, description = "Not changed since the `ETag` in `If-None-Match`"),
        Errors<(Anybody,)>,
    )
)]
pub async fn jwks(State(state): State<AppState>, headers: HeaderMap) -> Result<Response, ApiError> {
    let body = json!({ "keys": published_keys(&state.context).await?.published() }).to_string();
    let age = state.context.jwks_max_age();
    Ok(caching::answer(&headers, HeaderValue::from_static("application/jwk-set+json"), body.into(), age))
}

/// Where things are
///
/// Agents log in with a challenge, which is no grant of OAuth: so there is no token endpoint, and the lists of grants
/// and response types are empty.
#[utoipa::path(
    get, path = "/.well-known/oauth-authorization-server", operation_id = "readServerMetadata", tag = "Server",
    security(()),
    responses(
        (
            status = 200, description = "Authorization server metadata (RFC 8414)", body = ServerMetadata,
            headers(("ETag", description = "For `If-None-Match`")),
        ),
        (status = 304, description = "Not changed since the `ETag` in `If-None-Match`"),
        Errors<(Nothing,)>,
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
    caching::answer(&headers, content_type, body.to_string().into(), caching::DEFAULT_LIMIT)
}
