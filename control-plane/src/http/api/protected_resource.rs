//! `/services/{service}/protected-resource-metadata`: how OAuth clients find this server from the URL of a service (RFC 9728).

use crate::{
    domain::resource_uri::ResourceUri,
    http::{
        api::prelude::*,
        middleware::conditional_get::{CacheableContent, DEFAULT_MAX_AGE},
    },
};
use axum::{
    extract::Query,
    http::{HeaderMap, HeaderValue},
    response::Response,
};
use countersign_identity::protected_resource::metadata_document;
use serde::Deserialize;
use utoipa::IntoParams;

/// The query parameter that selects a resource of the service.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ResourceQuery {
    /// One of the resource URIs of the service. Default: the first one.
    resource: Option<String>,
}

// This type only describes the response in the OpenAPI document: `metadata_document` builds the JSON.
/// Protected resource metadata (RFC 9728).
#[derive(Serialize, ToSchema)]
pub struct ResourceMetadata {
    /// The resource URI.
    #[schema(example = "https://api.example/mcp")]
    resource: String,
    /// The issuer of the tokens that the service accepts.
    #[schema(example = json!(["https://countersign.example"]))]
    authorization_servers: Vec<String>,
    /// Always `header`.
    #[schema(example = json!(["header"]))]
    bearer_methods_supported: Vec<String>,
}

/// Read the metadata of a service as a protected resource (RFC 9728)
///
/// For a service whose own host does not serve the document. A sidecar serves it at `/.well-known/oauth-protected-resource` on the
/// host of the service. A service without resource URIs has no document.
#[utoipa::path(
    get, path = "/services/{service}/protected-resource-metadata", operation_id = "readResourceMetadata", tag = "OAuth",
    params(ServicePathParam, ResourceQuery), security(()),
    responses(
        (
            status = 200, description = "Protected resource metadata (RFC 9728)", body = ResourceMetadata,
            headers(("ETag", description = "For `If-None-Match`")),
        ),
        (status = 304, description = "Unchanged since the `ETag` in `If-None-Match`"),
        Errors<(PublicAccess, ServiceNotFound, ResourceUriMissing, UnknownResource)>,
    )
)]
pub async fn read(
    State(state): State<AppState>,
    PathParams(service): PathParams<String>,
    Query(ResourceQuery { resource }): Query<ResourceQuery>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let uris = operations::read_resource_uris(&state.context, parse_id(&service)?).await?;
    let uri = match resource {
        Some(text) => {
            let wanted = ResourceUri::parse(&text).ok();
            let found = uris.iter().find(|uri| Some(*uri) == wanted.as_ref());
            found.ok_or_else(|| ApiError::invalid_field("resource", UNKNOWN_RESOURCE))?
        }
        None => uris.iter().next().ok_or_else(ApiError::no_resource_uri)?,
    };
    let document = metadata_document(uri.as_str(), state.context.issuer());
    let content = CacheableContent::new(HeaderValue::from_static("application/json"), document.into());
    Ok(content.response(&headers, DEFAULT_MAX_AGE))
}
