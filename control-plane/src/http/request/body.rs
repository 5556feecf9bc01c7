//! Request bodies: one JSON object, and for OAuth clients also a form. An error reports all invalid fields at once.
//!
//! Unknown fields are errors: otherwise a misspelt `expiresAt` would create a role assignment that never expires.

mod field;
pub mod typed;

pub use field::FromField;

use super::{client_address::ClientAddress, idempotency::BodyDigest, json::JsonObject};
use crate::http::error::{ApiError, FieldError};
use axum::{
    body::{Body, HttpBody as _, to_bytes},
    extract::{FromRequest, MatchedPath, Request},
    http::{HeaderMap, HeaderValue, header},
    response::{IntoResponse, Response},
};
use countersign_process::server::{ReservedMemory, SharedMemory, head_size};
use prometheus::IntCounter;
use serde_json::{Map, Value};
use std::time::Duration;
use tokio::time::timeout;
use tokio_stream::StreamExt;

/// Maximum size of a body under `/auth` and at [`TOKEN_PATH`], in bytes.
const AUTH_BODY_LIMIT: usize = 16 * 1024;

/// This route under `/auth` has the limit [`BODY_LIMIT`], because its body contains an access token.
const REVOKE_PATH: &str = "/auth/revoke";

/// The token endpoint. Other endpoints under `/oauth` have the limit [`BODY_LIMIT`], because their bodies contain access tokens.
const TOKEN_PATH: &str = "/oauth/token";

/// Maximum size of all other bodies, in bytes.
pub const BODY_LIMIT: usize = 64 * 1024;

/// How many bytes of a too large body we read and discard. Many clients read the response only after they have sent the whole body.
const MAX_DISCARDED: usize = 2 * 1024 * 1024;

/// Media type of a form, which OAuth clients send.
const FORM_MEDIA_TYPE: &str = "application/x-www-form-urlencoded";

/// The media types of gRPC begin with this.
const GRPC_MEDIA_TYPE: &[u8] = b"application/grpc";

/// How many wrong fields an error names at most, so that the response is not much larger than the request.
const MAX_REPORTED_ERRORS: usize = 20;

/// Maximum number of characters of client input that an error message repeats.
const MAX_ECHO_CHARS: usize = 160;

/// The health check needs no memory from [`REQUEST_MEMORY`], so that it is answered whatever other clients do.
const HEALTH_PATH: &str = "/health";

/// The memory for all requests in progress, in bytes.
const REQUEST_MEMORY: usize = 64 << 20;

/// What a request needs besides its head and its body, in bytes: roughly the memory of its task and of its parsed fields. This also
/// bounds the number of requests in progress.
const BASE_COST: usize = 16 << 10;

/// Time limit for receiving a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// The maximum size of a body that a path accepts, in bytes.
pub fn body_limit(path: &str) -> usize {
    let is_small = path == TOKEN_PATH || (path.starts_with("/auth/") && path != REVOKE_PATH);
    if is_small { AUTH_BODY_LIMIT } else { BODY_LIMIT }
}

/// The memory for requests in progress. All clients of the API share it, and each may have a quarter. `refused` counts the requests
/// that get no memory.
pub fn request_memory(refused: IntCounter) -> SharedMemory {
    SharedMemory::new(REQUEST_MEMORY, REQUEST_MEMORY / 4, refused)
}

/// Reads the whole body before the request is processed, because some clients lose a response that arrives while they still send.
/// gRPC calls are answered at once: their clients wait for a response before they end the body. The memory of the request stays
/// reserved until its response is ready.
pub async fn buffer_body(
    memory: &SharedMemory,
    request: Request,
    next: impl AsyncFnOnce(Request) -> Response,
) -> Response {
    if request.uri().path() == HEALTH_PATH && request.body().is_end_stream() {
        return next(request).await;
    }
    let is_grpc = |value: &HeaderValue| value.as_bytes().starts_with(GRPC_MEDIA_TYPE);
    if request.extensions().get::<MatchedPath>().is_none()
        && request.headers().get(header::CONTENT_TYPE).is_some_and(is_grpc)
    {
        return ApiError::grpc_on_the_api_port();
    }
    let Some(client) = request.extensions().get::<ClientAddress>() else {
        return ApiError::internal().into_response();
    };
    let head = head_size(request.uri(), request.headers());
    let Some(mut reserved) = memory.reserve(Some(client.ip), BASE_COST + head) else {
        return ApiError::overloaded().into_response();
    };
    let limit = body_limit(request.uri().path());
    let (mut parts, body) = request.into_parts();
    match timeout(BODY_TIMEOUT, read_body(body, limit, &mut reserved)).await {
        Ok(Ok(bytes)) => {
            if let Some(digest) = BodyDigest::from_request(&parts.headers, &bytes) {
                parts.extensions.insert(digest);
            }
            next(Request::from_parts(parts, Body::from(bytes))).await
        }
        Ok(Err(error)) => error.into_response(),
        Err(_) => ApiError::malformed_body("The body was not received in time").into_response(),
    }
}

/// Reads a body of at most `limit` bytes. Refuses a larger body after discarding up to [`MAX_DISCARDED`] bytes of it.
async fn read_body(body: Body, limit: usize, reserved: &mut ReservedMemory) -> Result<Vec<u8>, ApiError> {
    let (mut stream, mut bytes, mut discarded) = (body.into_data_stream(), Vec::new(), 0);
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.map_err(|_| ApiError::malformed_body("The body was not received completely"))?;
        if bytes.len() + chunk.len() <= limit && discarded == 0 {
            if !reserved.grow(chunk.len()) {
                return Err(ApiError::overloaded());
            }
            bytes.extend_from_slice(&chunk);
        } else {
            discarded += chunk.len();
        }
        if discarded > MAX_DISCARDED {
            break;
        }
    }
    if discarded == 0 { Ok(bytes) } else { Err(ApiError::too_large(limit)) }
}

/// The fields of a body that have not been read yet, and the errors in the fields that were read.
#[derive(Clone)]
pub struct BodyFields {
    unread: Map<String, Value>,
    errors: Vec<FieldError>,
    ignore_unknown: bool,
}

/// The fields of a body that is either JSON or a form.
pub struct FormOrJson(pub BodyFields);

/// The fields of a form.
pub struct Form(pub BodyFields);

/// The body, if the rate limits have parsed it before the handler, stored as an extension of the request.
#[derive(Clone)]
pub struct ParsedBody(pub Result<BodyFields, ApiError>);

impl<S: Sync> FromRequest<S> for BodyFields {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        parse_request(request, parse_json).await
    }
}

impl<S: Sync> FromRequest<S> for FormOrJson {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        parse_request(request, parse_form_or_json).await.map(Self)
    }
}

impl<S: Sync> FromRequest<S> for Form {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        parse_request(request, parse_form).await.map(Self)
    }
}

async fn parse_request(
    mut request: Request,
    parse: fn(&HeaderMap, &[u8]) -> Result<BodyFields, ApiError>,
) -> Result<BodyFields, ApiError> {
    if let Some(ParsedBody(parsed)) = request.extensions_mut().remove() {
        return parsed;
    }
    let (parts, body) = request.into_parts();
    let bytes = to_bytes(body, BODY_LIMIT).await.map_err(|_| ApiError::too_large(BODY_LIMIT))?;
    parse(&parts.headers, &bytes)
}

/// Parses a JSON object.
pub fn parse_json(headers: &HeaderMap, bytes: &[u8]) -> Result<BodyFields, ApiError> {
    require_json(headers)?;
    let JsonObject { fields, duplicates } = serde_json::from_slice(bytes)
        .map_err(|error| ApiError::malformed_body(shorten(format!("The body must be one JSON object: {error}"))))?;
    let errors = duplicates.into_iter().map(|(field, message)| FieldError::new(shorten(field), message)).collect();
    Ok(BodyFields { unread: fields, errors, ignore_unknown: false })
}

/// Parses a form or a JSON object, depending on the content type.
pub fn parse_form_or_json(headers: &HeaderMap, bytes: &[u8]) -> Result<BodyFields, ApiError> {
    if single_content_type(headers).is_some_and(is_form) {
        parse_form(headers, bytes)
    } else {
        parse_json(headers, bytes)
    }
}

pub fn parse_form(headers: &HeaderMap, bytes: &[u8]) -> Result<BodyFields, ApiError> {
    if !single_content_type(headers).is_some_and(is_form) {
        return Err(ApiError::form_required());
    }
    // RFC 6749, section 3.2: a parameter without a value counts as omitted, a repeated one is an error, unknown ones are ignored.
    let (mut unread, mut errors) = (Map::new(), Vec::new());
    for (name, value) in form_urlencoded::parse(bytes).filter(|(_, value)| !value.is_empty()) {
        if unread.insert(name.clone().into_owned(), Value::String(value.into_owned())).is_some() {
            errors.push(FieldError::new(shorten(name.into_owned()), "must not occur twice"));
        }
    }
    Ok(BodyFields { unread, errors, ignore_unknown: true })
}

/// Requires the content type JSON; a missing one counts as JSON. Also refuses a request with several `Content-Type` headers, with a
/// charset other than UTF-8, or with a content coding other than `identity`: a filter could read the same bytes differently.
fn require_json(headers: &HeaderMap) -> Result<(), ApiError> {
    let has_no_content_type = !headers.contains_key(header::CONTENT_TYPE);
    let is_json =
        (has_no_content_type && is_identity_encoded(headers)) || single_content_type(headers).is_some_and(is_json);
    if is_json { Ok(()) } else { Err(ApiError::unsupported_media_type()) }
}

/// The content type, if there is exactly one and the body has no content coding.
fn single_content_type(headers: &HeaderMap) -> Option<&str> {
    let mut types = headers.get_all(header::CONTENT_TYPE).iter();
    let first = types.next()?.to_str().ok()?;
    (types.next().is_none() && is_identity_encoded(headers)).then_some(first)
}

fn is_identity_encoded(headers: &HeaderMap) -> bool {
    let codings = headers.get_all(header::CONTENT_ENCODING).iter().map(|value| value.to_str().ok());
    let is_identity = |coding: &str| ["", "identity"].contains(&coding.to_ascii_lowercase().trim());
    codings.into_iter().all(|coding| coding.is_some_and(is_identity))
}

fn is_form(content_type: &str) -> bool {
    essence_in_utf8(content_type).is_some_and(|essence| essence == FORM_MEDIA_TYPE)
}

fn is_json(content_type: &str) -> bool {
    let is_json = |essence: String| {
        essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json"))
    };
    essence_in_utf8(content_type).is_some_and(is_json)
}

/// The media type without parameters, in lower case; `None` if the charset is not UTF-8 or a second media type follows.
fn essence_in_utf8(content_type: &str) -> Option<String> {
    let content_type = content_type.to_ascii_lowercase();
    let mut parts = content_type.split(';').map(str::trim);
    let essence = parts.next().filter(|essence| !essence.contains(','))?;
    let mut charsets =
        parts.filter_map(|parameter| parameter.split_once('=')).filter(|(name, _)| name.trim() == "charset");
    charsets.all(|(_, charset)| charset.trim().trim_matches('"') == "utf-8").then(|| essence.to_owned())
}

impl BodyFields {
    /// The fields of an object within a body.
    fn of_object(fields: Map<String, Value>) -> Self {
        Self { unread: fields, errors: Vec::new(), ignore_unknown: false }
    }

    /// Parses the body with `read`, which returns `None` after an error. In JSON, fields that `read` does not read are errors, too.
    pub fn parse<T>(mut self, read: impl FnOnce(&mut Self) -> Option<T>) -> Result<T, ApiError> {
        let parsed = read(&mut self);
        if !self.ignore_unknown {
            let unknown = self.unread.into_iter();
            self.errors.extend(unknown.map(|(field, _)| FieldError::new(shorten(field), "is not a known field")));
        }
        match parsed {
            Some(parsed) if self.errors.is_empty() => Ok(parsed),
            _ => Err(ApiError::invalid(self.errors.into_iter().take(MAX_REPORTED_ERRORS))),
        }
    }

    /// The text of a field. The field still counts as unread afterwards.
    pub fn peek(&self, name: &str) -> Option<&str> {
        self.unread.get(name).and_then(Value::as_str)
    }

    /// Reads a required field.
    pub fn required<T: FromField>(&mut self, name: &'static str) -> Option<T> {
        match self.optional(name)? {
            Some(value) => Some(value),
            None => self.error(name, "is required".into()),
        }
    }

    /// Reads an optional field; `null` counts as absent. `None` means that the value is invalid, `Some(None)` that it is absent.
    #[expect(clippy::option_option, reason = "invalid, absent and present are three different results")]
    pub fn optional<T: FromField>(&mut self, name: &'static str) -> Option<Option<T>> {
        match self.unread.remove(name) {
            None | Some(Value::Null) => Some(None),
            Some(value) => match T::from_field(value) {
                Ok(value) => Some(Some(value)),
                Err(message) => self.error(name, message),
            },
        }
    }

    fn error<T>(&mut self, name: &str, message: String) -> Option<T> {
        self.errors.push(FieldError::new(name, message));
        None
    }
}

/// Truncates client input for an error message.
fn shorten(text: String) -> String {
    if text.chars().count() > MAX_ECHO_CHARS {
        text.chars().take(MAX_ECHO_CHARS).chain(['…']).collect()
    } else {
        text
    }
}

#[cfg(test)]
mod fuzz;
