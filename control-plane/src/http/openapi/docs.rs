//! `/docs`: the description of the API for people to read, by Swagger UI. Everything it needs comes from here.

use super::errors::{Errors, NoFile, Nothing};
use crate::http::{error::ApiError, middleware::caching, request::ids::InPath};
use axum::{
    body::Bytes,
    http::{HeaderMap, HeaderName, HeaderValue, header},
    response::{IntoResponse, Response},
};
use std::sync::Arc;
use utoipa_swagger_ui::{Config, serve};

/// Where the page finds the description, seen from `/docs`.
const DESCRIPTION: &str = "openapi.json";

/// The page; the names in it are relative to its folder.
const PAGE: &str = "index.html";

/// What the page names. The rest of what comes with Swagger UI is for other ways to build it in.
const FILES: [&str; 7] = [
    "swagger-ui.css",
    "index.css",
    "swagger-ui-bundle.js",
    "swagger-ui-standalone-preset.js",
    "swagger-initializer.js",
    "favicon-32x32.png",
    "favicon-16x16.png",
];

/// Swagger UI styles by attributes and draws with `data:` images; scripts and requests are for this server only.
const POLICY: &str = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'";

/// Read this description in a browser
#[utoipa::path(
    get, path = "/docs", operation_id = "readDocs", tag = "Server", security(()),
    responses(
        (status = 200, description = "A page; it loads nothing from elsewhere", body = String, content_type = "text/html"),
        (status = 304, description = "Not changed since the `ETag` in `If-None-Match`"),
        Errors<(Nothing,)>,
    )
)]
pub async fn page(headers: HeaderMap) -> Result<Response, ApiError> {
    let (content_type, bytes) = file_of(PAGE)?;
    let page = String::from_utf8_lossy(&bytes).replace("=\"./", "=\"").replace("href=\"", "href=\"docs/");
    Ok(guarded(&headers, &content_type, page.replace("src=\"", "src=\"docs/").into()))
}

/// A file of that page
#[utoipa::path(
    get, path = "/docs/{file}", operation_id = "readDocsFile", tag = "Server", security(()),
    params(("file" = String, Path, description = "One that the page names", example = "swagger-ui.css")),
    responses(
        (
            status = 200, description = "The file",
            content((String = "text/css"), (String = "text/javascript"), (String = "image/png")),
        ),
        (status = 304, description = "Not changed since the `ETag` in `If-None-Match`"),
        Errors<(NoFile,)>,
    )
)]
pub async fn file(InPath(file): InPath<String>, headers: HeaderMap) -> Result<Response, ApiError> {
    if !FILES.contains(&file.as_str()) {
        return Err(ApiError::not_found());
    }
    let (content_type, bytes) = file_of(&file)?;
    Ok(guarded(&headers, &content_type, bytes))
}

/// A file of Swagger UI, with its type.
fn file_of(name: &str) -> Result<(String, Bytes), ApiError> {
    // "none" turns off the badge of a validator elsewhere, which would be told where this server is.
    let config = Config::from(DESCRIPTION).validator_url("none").deep_linking(true).display_request_duration(true);
    let found = serve(name, Arc::new(config)).map_err(|error| {
        tracing::error!(%error, name, "a file of the docs cannot be made");
        ApiError::internal()
    })?;
    let file = found.ok_or_else(ApiError::not_found)?;
    Ok((file.content_type, Bytes::from(file.bytes.into_owned())))
}

fn guarded(headers: &HeaderMap, content_type: &str, bytes: Bytes) -> Response {
    let content_type =
        HeaderValue::from_str(content_type).unwrap_or(HeaderValue::from_static("application/octet-stream"));
    let guards = [
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (HeaderName::from_static("x-frame-options"), HeaderValue::from_static("DENY")),
    ];
    (guards, caching::answer(headers, content_type, bytes, caching::DEFAULT_LIMIT)).into_response()
}
