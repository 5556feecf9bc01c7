//! From every way of failing to the one shape of an error: one exhaustive map.
//!
//! Internal text has no way out: what is logged here is not what is answered.

use super::{
    code::ErrorCode,
    middleware::limits::{Told, seconds},
};
use crate::{
    domain::timestamp::format_rfc3339,
    operations::{NotFound, OperationError},
};
use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use countersign_identity::{Reason, Refusal, Timestamp};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

/// An error as the specification shapes it.
#[derive(Debug)]
pub struct ApiError {
    code: ErrorCode,
    message: String,
    details: Map<String, Value>,
    reason: Option<Reason>,
    /// In seconds.
    retry_after: Option<u64>,
}

/// The body of every error.
#[derive(Serialize, ToSchema)]
pub struct ErrorBody {
    /// What went wrong.
    error: ErrorObject,
}

impl ErrorBody {
    /// What people are told.
    pub fn message(&self) -> &str {
        &self.error.message
    }
}

/// What went wrong: `code` for programs, `message` for people, `details` for both.
#[derive(Serialize, ToSchema)]
struct ErrorObject {
    /// The kind of error. More may come: treat one that you do not know by the status of its response.
    #[schema(pattern = "^[A-Z_]+$")]
    code: &'static str,
    /// One sentence that says what is wrong and how to mend it. Its wording may change.
    message: String,
    /// What else is known: `fields` names every wrong field of a body and what it must be; `reason` says which
    /// credential failed and why, or why it does not suffice; `expiredAt` since when a token is expired.
    details: Map<String, Value>,
}

/// What was refused and why, for log and metrics: an extension of the response.
#[derive(Debug, Clone, Copy)]
pub struct Refused {
    /// What kind of error it is.
    pub code: ErrorCode,
    /// Why, where a reason of the closed list says it.
    pub reason: Option<Reason>,
}

/// A field of a body, and what is wrong with it.
#[derive(Debug)]
pub struct Problem {
    /// The field's name.
    pub field: String,
    /// What it must be.
    pub message: String,
}

impl ApiError {
    fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), details: Map::new(), reason: None, retry_after: None }
    }

    /// Nothing is at this path.
    pub fn not_found() -> Self {
        Self::new(ErrorCode::NotFound, "Nothing is at this path")
    }

    /// The path exists, but not with this method.
    pub fn method_not_allowed() -> Self {
        Self::new(ErrorCode::MethodNotAllowed, "This path does not answer to this method")
    }

    /// Fields that are missing, wrong or unknown.
    pub fn invalid(problems: &[Problem]) -> Self {
        let list: Vec<_> = problems.iter().map(|problem| format!("`{}` {}", problem.field, problem.message)).collect();
        let fields = problems.iter().map(|problem| (problem.field.clone(), json!(problem.message)));
        let mut error = Self::new(ErrorCode::ValidationError, list.join("; "));
        error.details.insert("fields".into(), Value::Object(fields.collect()));
        error
    }

    /// More about what is wrong.
    #[must_use]
    pub fn with_details(mut self, details: impl IntoIterator<Item = (&'static str, Value)>) -> Self {
        self.details.extend(details.into_iter().map(|(name, value)| (name.to_owned(), value)));
        self
    }

    /// More about what is wrong, if it is the fields.
    #[must_use]
    pub fn about_fields(self, details: impl IntoIterator<Item = (&'static str, Value)>) -> Self {
        if self.code == ErrorCode::ValidationError { self.with_details(details) } else { self }
    }

    /// A body that is no JSON object.
    pub fn unreadable(message: impl Into<String>) -> Self {
        let mut error = Self::new(ErrorCode::ValidationError, message);
        error.details.insert("fields".into(), json!({}));
        error
    }

    /// A body above the limit.
    pub fn too_large(limit: usize) -> Self {
        let message = format!("The body must not be larger than {limit} bytes");
        Self::new(ErrorCode::PayloadTooLarge, message)
    }

    /// A body that is not JSON by its own word.
    pub fn unsupported_media_type() -> Self {
        let message = "The body must be JSON in UTF-8 and not compressed: send `Content-Type: application/json` once";
        Self::new(ErrorCode::UnsupportedMediaType, message)
    }

    /// Plain HTTP, where it is a proxy that must terminate TLS.
    pub fn https_required() -> Self {
        let message = "This API is reached over HTTPS only, through the proxy in front of it: use https:// in the URL";
        Self::new(ErrorCode::HttpsRequired, message)
    }

    /// More requests than pass.
    pub fn rate_limited(told: &Told) -> Self {
        let Told { category, quota, reading } = told;
        let wait = seconds(reading.reset_after).max(1);
        let plural = if wait == 1 { "" } else { "s" };
        let message = format!("{}: try again in {wait} second{plural}, as Retry-After says", category.excess());
        let mut error = Self::new(ErrorCode::RateLimitExceeded, message);
        error.retry_after = Some(wait);
        error.with_details([
            ("category", json!(category.name())),
            ("limit", json!(quota.max_calls)),
            ("windowSeconds", json!(quota.window.as_secs())),
            ("retryAfterSeconds", json!(wait)),
        ])
    }

    /// Whether it is the credential that is missing or no good.
    pub fn is_unauthenticated(&self) -> bool {
        self.code == ErrorCode::AuthenticationFailed
    }

    /// What an id in path or body did not lead to.
    pub fn resource_not_found(what: NotFound) -> Self {
        let (code, message) = match what {
            NotFound::Agent => (ErrorCode::AgentNotFound, "The agent does not exist"),
            NotFound::Service => (ErrorCode::ServiceNotFound, "The service does not exist"),
            NotFound::Key => (ErrorCode::NotFound, "The API key does not exist at this service"),
            NotFound::SigningKey => (ErrorCode::NotFound, "The signing key does not exist"),
            NotFound::Webhook => (ErrorCode::WebhookNotFound, "The webhook does not exist"),
            NotFound::Delivery => (ErrorCode::NotFound, "Nothing was delivered to this webhook under this id"),
            NotFound::Role => (ErrorCode::RoleNotFound, "The role does not exist at this service"),
        };
        Self::new(code, message)
    }

    /// A fault of ours that a retry may not mend.
    pub fn internal() -> Self {
        Self::new(ErrorCode::Internal, "The request failed; the request id leads to the log")
    }

    /// The database fails.
    pub fn unavailable() -> Self {
        let message = "The database cannot be used right now: try again, with the same Idempotency-Key where it must happen only once";
        Self::new(ErrorCode::ServiceUnavailable, message)
    }

    /// What is answered after a handler panicked.
    pub fn answer_to_panic() -> Response {
        tracing::error!("a handler panicked");
        Self::internal().into_response()
    }

    /// The status, and under which name an example of this error stands: its reason if it has one, else its code.
    pub fn case(&self) -> (StatusCode, &str) {
        (self.code.status(), self.details.get("reason").and_then(Value::as_str).unwrap_or(self.code.as_str()))
    }

    /// The body.
    pub fn body(&self) -> ErrorBody {
        let error =
            ErrorObject { code: self.code.as_str(), message: self.message.clone(), details: self.details.clone() };
        ErrorBody { error }
    }

    /// The response with another body.
    pub fn respond(self, body: impl Serialize) -> Response {
        let mut response = (self.code.status(), Json(body)).into_response();
        if self.code == ErrorCode::AuthenticationFailed {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        let soon = (self.code == ErrorCode::ServiceUnavailable).then_some(1);
        if let Some(seconds) = self.retry_after.or(soon) {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response.extensions_mut().insert(Refused { code: self.code, reason: self.reason });
        response
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = self.body();
        self.respond(body)
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
        let mut error = Self::new(reason.code().into(), reason.message());
        error.details.insert("reason".into(), json!(reason.as_str()));
        if let Some(at) = expired_at {
            error.details.insert("expiredAt".into(), json!(format_rfc3339(at)));
        }
        error.reason = Some(reason);
        error
    }
}

impl From<OperationError> for ApiError {
    fn from(denied: OperationError) -> Self {
        match denied {
            OperationError::Refused(refusal) => refusal.into(),
            OperationError::InvalidSignature => {
                let message = "The signature does not fit the challenge: sign the nonce with ECDSA P-256 and SHA-256, send it as hex";
                Self::new(ErrorCode::InvalidSignature, message)
            }
            OperationError::NotFound(what) => Self::resource_not_found(what),
            OperationError::Conflict(message) => Self::new(ErrorCode::Conflict, message),
            OperationError::IdempotencyKeyReused => {
                let message = "This Idempotency-Key was sent with another body: a new request needs a new key";
                let error = Self::new(ErrorCode::Conflict, message);
                error.with_details([("reason", json!("idempotency_key_reused"))])
            }
            OperationError::Invalid { field, message } => {
                Self::invalid(&[Problem { field: field.to_owned(), message: message.to_owned() }])
            }
            OperationError::Store(error) => {
                tracing::error!(%error, "store failed");
                Self::unavailable()
            }
            OperationError::Keyring(error) => {
                tracing::error!(%error, "keyring failed");
                Self::internal()
            }
        }
    }
}

/// An instant in an answer.
pub struct Instant(pub Timestamp);

impl Serialize for Instant {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format_rfc3339(self.0))
    }
}
