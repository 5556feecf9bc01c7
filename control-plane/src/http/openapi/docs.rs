//! `/docs`: the API description in Swagger UI. The page loads nothing from other servers.

use super::errors::{Errors, FileNotFound, InternalOnly};
use crate::http::{error::ApiError, middleware::conditional_get, request::ids::PathParams};
use axum::{
    body::Bytes,
    http::{HeaderMap, HeaderName, HeaderValue, header},
    response::{IntoResponse, Response},
};
use std::sync::Arc;
use utoipa_swagger_ui::{Config, serve};

/// URL of the description, relative to `/docs`.
const DESCRIPTION_URL: &str = "openapi.json";

/// The HTML file of the page. The URLs in the HTML file are relative to the folder of the file.
const PAGE: &str = "index.html";

/// The files of Swagger UI that the documentation page loads; the page needs no further files of Swagger UI.
const FILES: [&str; 7] = [
    "swagger-ui.css",
    "index.css",
    "swagger-ui-bundle.js",
    "swagger-ui-standalone-preset.js",
    "swagger-initializer.js",
    "favicon-32x32.png",
    "favicon-16x16.png",
];

/// Swagger UI needs inline styles and `data:` images. Scripts and requests are allowed from and to this server only.
const CONTENT_SECURITY_POLICY: &str = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'";

/// Read the API description in a browser
#[utoipa::path(
    get, path = "/docs", operation_id = "readDocs", tag = "Server", security(()),
    responses(
        (status = 200, description = "The page. It loads nothing from other servers", body = String, content_type = "text/html"),
        (status = 304, description = "Unchanged since the `ETag` in `If-None-Match`"),
        Errors<(InternalOnly,)>,
    )
)]
pub async fn page(headers: HeaderMap) -> Result<Response, ApiError> {
    let (content_type, bytes) = load_file(PAGE)?;
    let page = String::from_utf8_lossy(&bytes).replace("=\"./", "=\"").replace("href=\"", "href=\"docs/");
    Ok(with_security_headers(&headers, &content_type, page.replace("src=\"", "src=\"docs/").into()))
}

/// Read a file of the documentation page
#[utoipa::path(
    get, path = "/docs/{file}", operation_id = "readDocsFile", tag = "Server", security(()),
    params(("file" = String, Path, description = "Name of a file that the page loads", example = "swagger-ui.css")),
    responses(
        (
            status = 200, description = "The file",
            content((String = "text/css"), (String = "text/javascript"), (String = "image/png")),
        ),
        (status = 304, description = "Unchanged since the `ETag` in `If-None-Match`"),
        Errors<(FileNotFound,)>,
    )
)]
pub async fn file(PathParams(file): PathParams<String>, headers: HeaderMap) -> Result<Response, ApiError> {
    if !FILES.contains(&file.as_str()) {
        return Err(ApiError::not_found());
    }
    let (content_type, bytes) = load_file(&file)?;
    Ok(with_security_headers(&headers, &content_type, bytes))
}

/// A file of Swagger UI, with its media type.
fn load_file(name: &str) -> Result<(String, Bytes), ApiError> {
    // "none" disables the badge of an online validator, which would receive the address of this server.
    let config = Config::from(DESCRIPTION_URL).validator_url("none").deep_linking(true).display_request_duration(true);
    let result = serve(name, Arc::new(config)).map_err(|error| {
        tracing::error!(%error, name, "cannot serve a documentation file");
        ApiError::internal()
    })?;
    let file = result.ok_or_else(ApiError::not_found)?;
    Ok((file.content_type, Bytes::from(file.bytes.into_owned())))
}

fn with_security_headers(headers: &HeaderMap, content_type: &str, bytes: Bytes) -> Response {
    let content_type =
        HeaderValue::from_str(content_type).unwrap_or(HeaderValue::from_static("application/octet-stream"));
    let security_headers = [
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(CONTENT_SECURITY_POLICY)),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (HeaderName::from_static("x-frame-options"), HeaderValue::from_static("DENY")),
    ];
    (
        security_headers,
        conditional_get::cacheable_response(headers, content_type, bytes, conditional_get::DEFAULT_MAX_AGE),
    )
        .into_response()
}
