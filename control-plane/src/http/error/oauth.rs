//! The errors of the OAuth endpoints, in the format of RFC 6749, section 5.2.
//!
//! Handlers return them. [`into_oauth_format`] converts the errors of the middleware around the handlers.

use super::ApiError;
use crate::http::code::ErrorCode;
use axum::{
    body::Body,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use countersign_identity::Reason;
use serde::Serialize;
use serde_json::json;
use std::collections::BTreeMap;
use utoipa::{
    IntoResponses, ToSchema,
    openapi::{self, ContentBuilder, Ref, RefOr, ResponseBuilder, Schema, example::ExampleBuilder},
};

/// An error of an OAuth endpoint.
#[derive(Debug)]
pub struct OAuthError {
    status: StatusCode,
    code: &'static str,
    error: ApiError,
    /// The scheme of `Authorization` in the request, for `WWW-Authenticate` in the response.
    scheme: Option<Scheme>,
}

/// A scheme of HTTP authentication.
#[derive(Debug, Clone, Copy)]
pub enum Scheme {
    /// A client id and a secret.
    Basic,
    /// An API key.
    Bearer,
}

/// The beginning of the paths of the OAuth endpoints.
pub const OAUTH_PATH: &str = "/oauth/";

/// The body of an error response of an OAuth endpoint.
#[derive(Serialize, ToSchema)]
pub struct OAuthErrorBody {
    /// Code of the error: `invalid_request`, `invalid_client`, `invalid_grant`, `unauthorized_client`, `unsupported_grant_type` or
    /// `invalid_scope` (RFC 6749, section 5.2), `invalid_target` (RFC 8707), `unsupported_response_type`, `temporarily_unavailable` or
    /// `server_error` (RFC 6749, section 4.1.2.1). Later versions may add codes: handle an unknown code by the HTTP status.
    #[schema(example = "invalid_client")]
    error: &'static str,
    /// What is wrong and how to fix it, for human readers. The wording may change.
    #[schema(example = "The client assertion has been used: make a new one with another jti")]
    error_description: String,
    /// As `details.reason` of other endpoints.
    #[schema(example = "assertion_used")]
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
}

/// The error responses of the OAuth endpoints in the API description.
pub struct OAuthErrors;

impl IntoResponses for OAuthErrors {
    fn responses() -> BTreeMap<String, RefOr<openapi::Response>> {
        let repeated = OAuthError::new("invalid_request", "`token` must not occur twice");
        let unauthenticated = [Reason::AssertionUsed, Reason::ServiceKeyInvalid].map(|it| ApiError::from(it).into());
        let too_many =
            OAuthError::new("temporarily_unavailable", "Too many requests: try again in 7 seconds (see Retry-After)");
        let unavailable = OAuthError::from(ApiError::unavailable());
        let responses: [(&str, &str, Vec<OAuthError>); 5] = [
            ("400", "The request is refused, see `error` (RFC 6749, section 5.2)", vec![repeated]),
            ("401", "The client is not authenticated: `invalid_client`", unauthenticated.into()),
            (
                "429",
                "There are too many requests: `temporarily_unavailable`. Wait `Retry-After` seconds",
                vec![too_many],
            ),
            (
                "503",
                "The server cannot answer now: `temporarily_unavailable`. Wait `Retry-After` seconds",
                vec![unavailable],
            ),
            ("default", "Another error", vec![ApiError::internal().into()]),
        ];
        let response = |description: &str, errors: Vec<OAuthError>| {
            let schema = RefOr::<Schema>::from(Ref::from_schema_name(OAuthErrorBody::name()));
            let examples = errors.iter().map(|error| {
                let body = error.body();
                let name = body.reason.unwrap_or(body.error);
                (name, ExampleBuilder::new().summary(&body.error_description).value(Some(json!(body))).build())
            });
            let content = ContentBuilder::new().schema(Some(schema)).examples_from_iter(examples).build();
            ResponseBuilder::new().description(description).content("application/json", content).build()
        };
        responses.map(|(status, description, errors)| (status.to_owned(), response(description, errors).into())).into()
    }
}

impl OAuthError {
    /// A parameter is missing or wrong. `code` is the value of `error` in the body.
    pub fn new(code: &'static str, message: &str) -> Self {
        // From this `ApiError`, the response body takes only the message. Logs and metrics take its code.
        let error = ApiError::malformed_body(message);
        Self { status: StatusCode::BAD_REQUEST, code, error, scheme: None }
    }

    /// The authentication of a client failed. A refusal becomes `invalid_client`. Other errors keep their code, for example if the
    /// database is unavailable.
    pub fn of_client(error: ApiError, scheme: Option<Scheme>) -> Self {
        let is_refusal = error.status() == StatusCode::UNAUTHORIZED || error.status() == StatusCode::FORBIDDEN;
        let other = Self::from(error);
        if !is_refusal {
            return other;
        }
        Self { status: StatusCode::UNAUTHORIZED, code: "invalid_client", scheme, ..other }
    }

    fn body(&self) -> OAuthErrorBody {
        // The usual message about an unknown service does not name the parameter, so we replace it.
        let is_unknown_service = self.error.code == ErrorCode::ServiceNotFound;
        let message =
            if is_unknown_service { "`resource` names a service that does not exist" } else { &self.error.message };
        OAuthErrorBody {
            error: self.code,
            error_description: without_special_characters(message),
            reason: self.error.reason_text,
        }
    }
}

impl From<ApiError> for OAuthError {
    fn from(error: ApiError) -> Self {
        let (status, code) = status_and_code(&error);
        Self { status, code, error, scheme: None }
    }
}

impl IntoResponse for OAuthError {
    fn into_response(self) -> Response {
        let body = self.body();
        let Self { status, error, scheme, .. } = self;
        let mut response = error.into_response_with_body(body);
        set_oauth_head(&mut response, status, scheme);
        response
    }
}

/// Converts an error response of the middleware to the format of OAuth. Errors of the handlers have this format already.
pub fn into_oauth_format(mut response: Response) -> Response {
    if let Some(error) = response.extensions_mut().remove::<Box<ApiError>>() {
        let error = OAuthError::from(*error);
        *response.body_mut() = Body::from(serde_json::to_vec(&error.body()).unwrap_or_default());
        response.headers_mut().remove(header::CONTENT_LENGTH);
        set_oauth_head(&mut response, error.status, None);
    }
    response
}

fn set_oauth_head(response: &mut Response, status: StatusCode, scheme: Option<Scheme>) {
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Some clients show this header instead of the error, so we only send it to clients that have used HTTP authentication.
    headers.remove(header::WWW_AUTHENTICATE);
    let challenge = scheme.map(|scheme| match scheme {
        Scheme::Basic => r#"Basic realm="countersign""#,
        Scheme::Bearer => r#"Bearer realm="countersign""#,
    });
    headers.extend(challenge.map(|challenge| (header::WWW_AUTHENTICATE, HeaderValue::from_static(challenge))));
}

/// Replaces the characters that RFC 6749 does not allow in `error_description`.
fn without_special_characters(message: &str) -> String {
    let replace = |character: char| match character {
        '"' | '\\' => '\'',
        ' '..='~' => character,
        _ => ' ',
    };
    message.chars().map(replace).collect()
}

fn status_and_code(error: &ApiError) -> (StatusCode, &'static str) {
    match (error.reason, error.code) {
        (Some(Reason::RefreshInvalid | Reason::RefreshExpired | Reason::RefreshReused | Reason::RefreshRevoked), _) => {
            (StatusCode::BAD_REQUEST, "invalid_grant")
        }
        (Some(Reason::AgentSuspended | Reason::AgentRevoked), _) => (StatusCode::BAD_REQUEST, "unauthorized_client"),
        (_, ErrorCode::AuthenticationFailed | ErrorCode::InvalidSignature) => {
            (StatusCode::UNAUTHORIZED, "invalid_client")
        }
        // The only conflict at these endpoints: the agent has tokens for too many services.
        (_, ErrorCode::ServiceNotFound | ErrorCode::Conflict) => (StatusCode::BAD_REQUEST, "invalid_target"),
        (_, code @ (ErrorCode::RateLimitExceeded | ErrorCode::ServiceUnavailable)) => {
            (code.status(), "temporarily_unavailable")
        }
        (_, ErrorCode::ValidationError) => (StatusCode::BAD_REQUEST, code_of_invalid_parameter(error)),
        (_, code) if code.status().is_server_error() => (code.status(), "server_error"),
        (_, code) => (code.status(), "invalid_request"),
    }
}

/// The OAuth error code for a request with an invalid parameter.
fn code_of_invalid_parameter(error: &ApiError) -> &'static str {
    let is_wrong = |name: &str| error.details.get("fields").is_some_and(|fields| fields.get(name).is_some());
    if is_wrong("scope") {
        "invalid_scope"
    } else if is_wrong("resource") || is_wrong("audience") {
        "invalid_target"
    } else {
        "invalid_request"
    }
}
