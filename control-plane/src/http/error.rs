//! Error responses. One exhaustive map converts every operation error to the error format of the API.
//!
//! Invariant: internal error messages are logged and never sent to clients.

mod access;
mod oauth;

pub use oauth::{OAUTH_PATH, OAuthError, OAuthErrorBody, OAuthErrors, Scheme, into_oauth_format};

use super::{
    code::ErrorCode,
    middleware::limits::{LimitStatus, ceil_seconds},
};
use crate::{
    domain::client_assertion::InvalidAssertion,
    operations::{NotFound, OperationError},
};
use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use countersign_identity::{Reason, Refusal};
use countersign_process::format_rfc3339;
use serde::Serialize;
use serde_json::{Map, Value, json};
use tonic::Status;
use utoipa::ToSchema;

/// An error response of the API.
#[derive(Debug, Clone)]
pub struct ApiError {
    code: ErrorCode,
    message: String,
    details: Map<String, Value>,
    /// Why a credential is refused; `None` for other errors.
    reason: Option<Reason>,
    /// Value of `details.reason`, if there is one: the text of `reason`, or one of [`OTHER_REASONS`].
    reason_text: Option<&'static str>,
    /// Value of `Retry-After`, in seconds.
    retry_after: Option<u64>,
}

/// The body of every error response.
#[derive(Serialize, ToSchema)]
pub struct ErrorBody {
    pub error: ErrorObject,
}

/// The error.
#[derive(Serialize, ToSchema)]
pub struct ErrorObject {
    /// Code of the error, for programs. Later versions may add codes: handle an unknown code by the HTTP status.
    #[schema(pattern = "^[A-Z_]+$")]
    code: &'static str,
    /// One sentence for human readers: what is wrong and how to fix it. The wording may change.
    pub message: String,
    /// Additional data. `fields` maps each invalid field to a description of the problem. `reason` identifies which credential
    /// was refused and why, or why the credential does not suffice. `expiredAt` is the expiry time of an expired token. If a
    /// credential does not suffice, `required` and `actual` contain what is required and what the caller has: a `scope`, a
    /// `serviceId`, or the `access` (`owner`, `administrator` or `receiver`) and the `issuer` and `subject` of the human user.
    details: Map<String, Value>,
}

/// Code and reason of an error response, for logs and metrics. Each error response has them in its extensions.
#[derive(Debug, Clone, Copy)]
pub struct ErrorLabels {
    pub code: ErrorCode,
    /// Value of `details.reason`, if the error has one.
    pub reason: Option<&'static str>,
}

/// The values of `details.reason` that are no [`Reason`], because they are not about credentials.
pub const OTHER_REASONS: [&str; 5] =
    [OVERLOADED, MASTER_KEY_MISSING, QUOTA_EXCEEDED, AGENT_LEFT, IDEMPOTENCY_KEY_REUSED];

const OVERLOADED: &str = "overloaded";
const MASTER_KEY_MISSING: &str = "master_key_missing";
const QUOTA_EXCEEDED: &str = "quota_exceeded";
const AGENT_LEFT: &str = "agent_left";
const IDEMPOTENCY_KEY_REUSED: &str = "idempotency_key_reused";

/// An invalid field of a request.
#[derive(Debug, Clone)]
pub struct FieldError {
    pub field: String,
    /// Description of the problem, or of valid values.
    pub message: String,
}

impl FieldError {
    pub fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: field.into(), message: message.into() }
    }
}

impl From<FieldError> for ApiError {
    fn from(error: FieldError) -> Self {
        Self::invalid([error])
    }
}

impl ApiError {
    fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), details: Map::new(), reason: None, reason_text: None, retry_after: None }
    }

    /// No route has the path of the request.
    pub fn not_found() -> Self {
        Self::new(ErrorCode::NotFound, "This path does not exist")
    }

    pub fn no_resource_uri() -> Self {
        Self::new(ErrorCode::NotFound, "This service has no resource URI: its owner can set `resourceUris`")
    }

    pub fn method_not_allowed() -> Self {
        Self::new(ErrorCode::MethodNotAllowed, "This path does not support this method")
    }

    /// Fields are missing, invalid or unknown.
    pub fn invalid(errors: impl IntoIterator<Item = FieldError>) -> Self {
        let (mut messages, mut fields) = (Vec::new(), Map::new());
        for FieldError { field, message } in errors {
            messages.push(format!("`{field}` {message}"));
            fields.insert(field, message.into());
        }
        Self::new(ErrorCode::ValidationError, messages.join("; ")).with_details([("fields", fields.into())])
    }

    pub fn invalid_field(field: &str, message: impl Into<String>) -> Self {
        FieldError::new(field, message).into()
    }

    #[must_use]
    pub fn with_details(mut self, details: impl IntoIterator<Item = (&'static str, Value)>) -> Self {
        self.details.extend(details.into_iter().map(|(name, value)| (name.to_owned(), value)));
        self
    }

    fn with_reason_text(mut self, reason: &'static str) -> Self {
        self.reason_text = Some(reason);
        self.with_details([("reason", json!(reason))])
    }

    /// Adds entries to `details` if the error is a validation error.
    #[must_use]
    pub fn with_validation_details(self, details: impl IntoIterator<Item = (&'static str, Value)>) -> Self {
        if self.code == ErrorCode::ValidationError { self.with_details(details) } else { self }
    }

    /// The body cannot be read as an object.
    pub fn malformed_body(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::ValidationError, message).with_details([("fields", json!({}))])
    }

    pub fn too_large(limit: usize) -> Self {
        let message = format!("The body must not be larger than {limit} bytes");
        Self::new(ErrorCode::PayloadTooLarge, message)
    }

    /// The body is not declared as JSON.
    pub fn unsupported_media_type() -> Self {
        let message = "The body must be uncompressed JSON in UTF-8: send exactly one `Content-Type: application/json`";
        Self::new(ErrorCode::UnsupportedMediaType, message)
    }

    /// The body is not declared as a form.
    pub fn form_required() -> Self {
        let message = "The body must be an uncompressed form in UTF-8: send exactly one `Content-Type: application/x-www-form-urlencoded`";
        Self::new(ErrorCode::UnsupportedMediaType, message)
    }

    /// The response to a gRPC client at the API port, such as a sidecar whose `sync.urls` names the API by mistake. The gRPC
    /// library of the client reads the error from the header `grpc-status`.
    pub fn grpc_on_the_api_port() -> Response {
        const MESSAGE: &str = "this is the API; sidecars connect to the sync port (listen.sync)";
        let mut response = Self::new(ErrorCode::UnsupportedMediaType, MESSAGE).into_response();
        Status::unimplemented(MESSAGE)
            .add_header(response.headers_mut())
            .map_or_else(|_| Self::internal().into_response(), |()| response)
    }

    /// The request reached the proxy over plain HTTP, or did not come through a trusted proxy.
    pub fn https_required() -> Self {
        let message =
            "This API is available over HTTPS only, through the proxy in front of it: use https:// in the URL";
        Self::new(ErrorCode::HttpsRequired, message)
    }

    pub fn rate_limited(status: &LimitStatus) -> Self {
        let LimitStatus { category, quota, quota_status } = status;
        let wait = ceil_seconds(quota_status.reset_after).max(1);
        let plural = if wait == 1 { "" } else { "s" };
        let message = format!("{}: try again in {wait} second{plural} (see Retry-After)", category.exceeded_message());
        let mut error = Self::new(ErrorCode::RateLimitExceeded, message);
        error.retry_after = Some(wait);
        error.with_details([
            ("category", json!(category.as_str())),
            ("limit", json!(quota.max_calls)),
            ("windowSeconds", json!(quota.window.as_secs())),
            ("retryAfterSeconds", json!(wait)),
        ])
    }

    /// Replaces the message if this error refuses a credential. Other errors keep their message.
    #[must_use]
    pub fn with_refusal_message(mut self, message: &str) -> Self {
        if matches!(self.code, ErrorCode::AuthenticationFailed | ErrorCode::InsufficientPermissions) {
            message.clone_into(&mut self.message);
        }
        self
    }

    /// Whether a credential is missing or invalid.
    pub fn is_unauthenticated(&self) -> bool {
        self.code == ErrorCode::AuthenticationFailed
    }

    pub fn resource_not_found(resource: NotFound) -> Self {
        let (code, message) = match resource {
            NotFound::Agent => (ErrorCode::AgentNotFound, "The agent does not exist"),
            NotFound::Service => (ErrorCode::ServiceNotFound, "The service does not exist"),
            NotFound::Transfer => (ErrorCode::NotFound, "This service is not offered to another person"),
            NotFound::Key => (ErrorCode::NotFound, "The API key does not exist at this service"),
            NotFound::SigningKey => (ErrorCode::NotFound, "The signing key does not exist"),
            NotFound::Webhook => (ErrorCode::WebhookNotFound, "The webhook does not exist"),
            NotFound::Delivery => (ErrorCode::NotFound, "This webhook has no delivery of this event"),
            NotFound::Role => (ErrorCode::RoleNotFound, "The role does not exist at this service"),
        };
        Self::new(code, message)
    }

    pub const fn reason(&self) -> Option<Reason> {
        self.reason
    }

    /// An internal error. Trying again may not help.
    pub fn internal() -> Self {
        Self::new(ErrorCode::Internal, "The request failed: the server's log has the cause under this request id")
    }

    /// The database is not available.
    pub fn unavailable() -> Self {
        let message = "The database is not available right now: try again, with the same Idempotency-Key if the request must take effect only once";
        Self::new(ErrorCode::ServiceUnavailable, message)
    }

    /// The database uses a master key that this control plane does not have.
    fn master_key_missing() -> Self {
        let message = "This control plane does not have the current master key of the database: its operator must configure it, or another control plane must answer";
        Self::new(ErrorCode::ServiceUnavailable, message).with_reason_text(MASTER_KEY_MISSING)
    }

    /// The client, or all clients together, have too many requests in progress.
    pub fn overloaded() -> Self {
        let message = "There are too many requests in progress: try again after Retry-After seconds";
        Self::new(ErrorCode::ServiceUnavailable, message).with_reason_text(OVERLOADED)
    }

    /// Logs that a handler panicked, and returns the response.
    pub fn panic_response() -> Response {
        tracing::error!("a handler panicked");
        Self::internal().into_response()
    }

    pub const fn status(&self) -> StatusCode {
        self.code.status()
    }

    /// The name of the example of an error in the API description: the reason if there is one, else the code.
    pub fn example_name(&self) -> &'static str {
        self.reason_text.unwrap_or(self.code.as_str())
    }

    pub fn body(&self) -> ErrorBody {
        let error =
            ErrorObject { code: self.code.as_str(), message: self.message.clone(), details: self.details.clone() };
        ErrorBody { error }
    }

    pub fn labels(&self) -> ErrorLabels {
        ErrorLabels { code: self.code, reason: self.reason_text }
    }

    /// The response, with the given body instead of [`Self::body`].
    pub fn into_response_with_body(self, body: impl Serialize) -> Response {
        let mut response = (self.code.status(), Json(body)).into_response();
        if self.code == ErrorCode::AuthenticationFailed {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        let default_retry_after = (self.code == ErrorCode::ServiceUnavailable).then_some(1);
        if let Some(seconds) = self.retry_after.or(default_retry_after) {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response.extensions_mut().insert(self.labels());
        response
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let (body, error) = (self.body(), Box::new(self.clone()));
        let mut response = self.into_response_with_body(body);
        // At OAuth endpoints, `into_oauth_format` takes the error from here, and writes it in the format of OAuth.
        response.extensions_mut().insert(error);
        response
    }
}

impl From<Reason> for ApiError {
    fn from(reason: Reason) -> Self {
        Refusal::from(reason).into()
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        let Refusal { reason, expired_at } = refusal;
        let expired_at = expired_at.map(|expired_at| ("expiredAt", json!(format_rfc3339(expired_at))));
        let error = Self::new(reason.code().into(), reason.message()).with_reason_text(reason.as_str());
        Self { reason: Some(reason), ..error.with_details(expired_at) }
    }
}

impl From<OperationError> for ApiError {
    fn from(error: OperationError) -> Self {
        match error {
            OperationError::Refused(refusal) => refusal.into(),
            OperationError::InvalidSignature => {
                let message = "The signature does not verify: sign the nonce with ECDSA P-256 and SHA-256, and send the signature as hex";
                Self::new(ErrorCode::InvalidSignature, message)
            }
            OperationError::InvalidAssertion(InvalidAssertion { reason, message }) => {
                Self { message: message.into_owned(), ..Self::from(reason) }
            }
            OperationError::NotFound(resource) => Self::resource_not_found(resource),
            OperationError::Conflict(message) => Self::new(ErrorCode::Conflict, message),
            OperationError::QuotaExceeded(quota) => {
                let (setting, limit, message) = quota.describe();
                let error = Self::new(ErrorCode::Conflict, message).with_reason_text(QUOTA_EXCEEDED);
                let setting = setting.map(|setting| ("setting", json!(setting)));
                error.with_details(setting.into_iter().chain([("limit", json!(limit))]))
            }
            OperationError::AgentLeft => {
                let message = "The agent has left this service. Its owner must readmit the service first";
                Self::new(ErrorCode::Conflict, message).with_reason_text(AGENT_LEFT)
            }
            OperationError::IdempotencyKeyReused => {
                let message =
                    "This Idempotency-Key was used for a request with another body: a new request needs a new key";
                Self::new(ErrorCode::Conflict, message).with_reason_text(IDEMPOTENCY_KEY_REUSED)
            }
            OperationError::Invalid { field, message } => Self::invalid_field(field, message),
            OperationError::Busy(message) => Self::new(ErrorCode::ServiceUnavailable, message),
            OperationError::Store(error) if error.is_missing_master_key() => {
                tracing::error!(%error, "a request needs a master key that is not configured");
                Self::master_key_missing()
            }
            OperationError::Store(error) => {
                tracing::error!(%error, "the database returned an error");
                Self::unavailable()
            }
            OperationError::Keyring(error) => {
                tracing::error!(%error, "a signing key or secret cannot be used");
                Self::internal()
            }
        }
    }
}
