//! `/docs`: the API description in Swagger UI. The page loads nothing from other servers.

use super::errors::{Errors, FileNotFound, InternalOnly};
use crate::http::{
    error::ApiError,
    middleware::conditional_get::{CacheableContent, DEFAULT_MAX_AGE},
    request::ids::PathParams,
};
use axum::{
    body::Bytes,
    http::{HeaderMap, HeaderName, HeaderValue, header},
    response::{IntoResponse, Response},
};
use std::{
    borrow::Cow,
    collections::HashMap,
    sync::{Arc, LazyLock},
};
use utoipa_swagger_ui::{Config, serve};

/// URL of the description, relative to `/docs`.
const DESCRIPTION_URL: &str = "openapi.json";

/// The HTML file of the page. Its URLs are relative to its own folder, so we put `docs/` before them.
const PAGE: &str = "index.html";

/// The files of Swagger UI that the page loads. The page needs no other files, so we serve no others.
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
    response(PAGE, &headers)
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
    response(&file, &headers)
}

/// The content of the page and of all files, by name. All responses share these bytes, because any client may request them without
/// a rate limit and read them slowly. A file that cannot be loaded is missing, so requests for it get an internal error.
static CONTENTS: LazyLock<HashMap<&'static str, CacheableContent>> = LazyLock::new(|| {
    let names = FILES.into_iter().chain([PAGE]);
    names.filter_map(|name| Some((name, load_file(name)?))).collect()
});

fn load_file(name: &'static str) -> Option<CacheableContent> {
    // "none" disables the badge of an online validator, which would receive the address of this server.
    let config = Config::from(DESCRIPTION_URL).validator_url("none").deep_linking(true).display_request_duration(true);
    let result = serve(name, Arc::new(config));
    let file = result.inspect_err(|error| tracing::error!(%error, name, "cannot load a documentation file")).ok()??;
    let content_type =
        HeaderValue::from_str(&file.content_type).unwrap_or(HeaderValue::from_static("application/octet-stream"));
    let bytes = if name == PAGE {
        let page = String::from_utf8_lossy(&file.bytes).replace("=\"./", "=\"").replace("href=\"", "href=\"docs/");
        Bytes::from(page.replace("src=\"", "src=\"docs/"))
    } else {
        match file.bytes {
            Cow::Borrowed(bytes) => Bytes::from_static(bytes),
            Cow::Owned(bytes) => Bytes::from(bytes),
        }
    };
    Some(CacheableContent::new(content_type, bytes))
}

fn response(name: &str, headers: &HeaderMap) -> Result<Response, ApiError> {
    let content = CONTENTS.get(name).ok_or_else(ApiError::internal)?;
    let security_headers = [
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(CONTENT_SECURITY_POLICY)),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (HeaderName::from_static("x-frame-options"), HeaderValue::from_static("DENY")),
    ];
    Ok((security_headers, content.response(headers, DEFAULT_MAX_AGE)).into_response())
}
