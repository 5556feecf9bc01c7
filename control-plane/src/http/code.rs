//! The codes of errors, as one closed list, each with its HTTP status: section 7 of the specification, and what it
//! leaves open.

use axum::http::StatusCode;
use countersign_identity::Code;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $status:ident;)+) => {
        /// What kind of error it is.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum ErrorCode {
            $($(#[$doc])* $name,)+
        }

        impl ErrorCode {
            /// The code as it stands in bodies.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }

            /// The status that goes with it.
            pub const fn status(self) -> StatusCode {
                match self { $(Self::$name => StatusCode::$status,)+ }
            }
        }
    };
}

codes! {
    /// Credentials are missing, wrong, expired or dead.
    AuthenticationFailed = "AUTHENTICATION_FAILED", UNAUTHORIZED;
    /// Known, but not allowed.
    InsufficientPermissions = "INSUFFICIENT_PERMISSIONS", FORBIDDEN;
    /// No such agent.
    AgentNotFound = "AGENT_NOT_FOUND", NOT_FOUND;
    /// More requests than pass.
    RateLimitExceeded = "RATE_LIMIT_EXCEEDED", TOO_MANY_REQUESTS;
    /// The signature does not fit.
    InvalidSignature = "INVALID_SIGNATURE", BAD_REQUEST;
    /// Fields are missing, wrong or unknown.
    ValidationError = "VALIDATION_ERROR", BAD_REQUEST;
    /// Plain HTTP.
    HttpsRequired = "HTTPS_REQUIRED", BAD_REQUEST;
    /// Nothing is at this path, or no such key or delivery.
    NotFound = "NOT_FOUND", NOT_FOUND;
    /// No such service.
    ServiceNotFound = "SERVICE_NOT_FOUND", NOT_FOUND;
    /// No such role at this service.
    RoleNotFound = "ROLE_NOT_FOUND", NOT_FOUND;
    /// No such target of events at this place.
    WebhookNotFound = "WEBHOOK_NOT_FOUND", NOT_FOUND;
    /// The path does not answer to this method.
    MethodNotAllowed = "METHOD_NOT_ALLOWED", METHOD_NOT_ALLOWED;
    /// It contradicts what is there.
    Conflict = "CONFLICT", CONFLICT;
    /// The body is above the limit.
    PayloadTooLarge = "PAYLOAD_TOO_LARGE", PAYLOAD_TOO_LARGE;
    /// The body is not JSON by its own word.
    UnsupportedMediaType = "UNSUPPORTED_MEDIA_TYPE", UNSUPPORTED_MEDIA_TYPE;
    /// A fault of ours.
    Internal = "INTERNAL", INTERNAL_SERVER_ERROR;
    /// We cannot know, so we refuse.
    ServiceUnavailable = "SERVICE_UNAVAILABLE", SERVICE_UNAVAILABLE;
}

impl From<Code> for ErrorCode {
    fn from(code: Code) -> Self {
        match code {
            Code::AuthenticationFailed => Self::AuthenticationFailed,
            Code::InsufficientPermissions => Self::InsufficientPermissions,
            Code::ServiceUnavailable => Self::ServiceUnavailable,
        }
    }
}
