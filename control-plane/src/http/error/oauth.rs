//! The errors of the OAuth endpoints, in the format of RFC 6749, section 5.2.
//!
//! Handlers return them. [`present_for_oauth`] converts the errors of everything that surrounds the handlers.

use super::ApiError;
use crate::http::code::ErrorCode;
use axum::{
    body::Body,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use countersign_identity::Reason;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

/// An error of an OAuth endpoint.
#[derive(Debug)]
pub struct OAuthError {
    status: StatusCode,
    code: &'static str,
    error: ApiError,
    /// Whether the client authenticated with the header `Authorization`.
    uses_header: bool,
}

/// The path of the OAuth endpoints.
const OAUTH_PATH: &str = "/oauth/";

/// The body of an error response of an OAuth endpoint.
#[derive(Serialize, ToSchema)]
pub struct OAuthErrorBody {
    /// Code of the error (RFC 6749, section 5.2).
    #[schema(example = "invalid_client")]
    error: &'static str,
    /// What is wrong and how to fix it, for human readers. The wording may change.
    #[schema(example = "The client assertion has been used: make a new one with another jti")]
    error_description: String,
    /// As `details.reason` of other endpoints.
    #[schema(example = "assertion_used")]
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl OAuthError {
    /// A parameter is missing or wrong, with the code for the parameter.
    pub fn new(code: &'static str, message: &str) -> Self {
        let error = ApiError::malformed_body(message);
        Self { status: StatusCode::BAD_REQUEST, code, error, uses_header: false }
    }

    /// The authentication of a client failed, or is not known to be right.
    pub fn of_client(error: ApiError, uses_header: bool) -> Self {
        let is_refusal = error.status() == StatusCode::UNAUTHORIZED || error.status() == StatusCode::FORBIDDEN;
        let other = Self::from(error);
        if !is_refusal {
            return other;
        }
        Self { status: StatusCode::UNAUTHORIZED, code: "invalid_client", uses_header, ..other }
    }

    fn body(&self) -> OAuthErrorBody {
        OAuthErrorBody {
            error: self.code,
            error_description: printable(&self.error.message),
            reason: self.error.details.get("reason").and_then(Value::as_str).map(str::to_owned),
        }
    }
}

impl From<ApiError> for OAuthError {
    fn from(error: ApiError) -> Self {
        let (status, code) = code_of(&error);
        Self { status, code, error, uses_header: false }
    }
}

impl IntoResponse for OAuthError {
    fn into_response(self) -> Response {
        let body = self.body();
        let Self { status, error, uses_header, .. } = self;
        let mut response = error.into_response_with_body(body);
        set_oauth_head(&mut response, status, uses_header);
        response
    }
}

/// Converts an error response to the format of OAuth, if the path is that of an OAuth endpoint.
pub fn present_for_oauth(path: &str, mut response: Response) -> Response {
    let error = response.extensions_mut().remove::<Box<ApiError>>();
    if let Some(error) = error.filter(|_| path.starts_with(OAUTH_PATH)) {
        let error = OAuthError::from(*error);
        *response.body_mut() = Body::from(serde_json::to_vec(&error.body()).unwrap_or_default());
        response.headers_mut().remove(header::CONTENT_LENGTH);
        set_oauth_head(&mut response, error.status, false);
    }
    response
}

fn set_oauth_head(response: &mut Response, status: StatusCode, uses_header: bool) {
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Some clients hide the error behind this header, so it is only sent to clients that have used HTTP authentication.
    headers.remove(header::WWW_AUTHENTICATE);
    if uses_header {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static(r#"Basic realm="countersign""#));
    }
}

/// The characters that RFC 6749 allows in `error_description`.
fn printable(message: &str) -> String {
    let allowed = |character: char| match character {
        '"' | '\\' => '\'',
        ' '..='~' => character,
        _ => ' ',
    };
    message.chars().map(allowed).collect()
}

fn code_of(error: &ApiError) -> (StatusCode, &'static str) {
    match (error.reason, error.code) {
        (Some(Reason::RefreshInvalid | Reason::RefreshExpired | Reason::RefreshReused | Reason::RefreshRevoked), _) => {
            (StatusCode::BAD_REQUEST, "invalid_grant")
        }
        (Some(Reason::AgentSuspended | Reason::AgentRevoked), _) => (StatusCode::BAD_REQUEST, "unauthorized_client"),
        (_, ErrorCode::AuthenticationFailed | ErrorCode::InvalidSignature) => {
            (StatusCode::UNAUTHORIZED, "invalid_client")
        }
        (_, ErrorCode::ServiceNotFound | ErrorCode::Conflict) => (StatusCode::BAD_REQUEST, "invalid_target"),
        (_, code @ (ErrorCode::RateLimitExceeded | ErrorCode::ServiceUnavailable)) => {
            (code.status(), "temporarily_unavailable")
        }
        (_, code) if code.status().is_server_error() => (code.status(), "server_error"),
        (_, code) => (code.status(), "invalid_request"),
    }
}
