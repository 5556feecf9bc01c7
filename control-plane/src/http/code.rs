//! The closed list of error codes, each with its HTTP status.

use axum::http::StatusCode;
use countersign_identity::Code;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $status:ident;)+) => {
        /// The kind of an error.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum ErrorCode {
            $($(#[$doc])* $name,)+
        }

        impl ErrorCode {
            /// The code in response bodies.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }

            pub const fn status(self) -> StatusCode {
                match self { $(Self::$name => StatusCode::$status,)+ }
            }
        }
    };
}

codes! {
    /// A credential is missing, invalid, expired or revoked.
    AuthenticationFailed = "AUTHENTICATION_FAILED", UNAUTHORIZED;
    /// The caller is authenticated but not authorized.
    InsufficientPermissions = "INSUFFICIENT_PERMISSIONS", FORBIDDEN;
    /// The agent does not exist.
    AgentNotFound = "AGENT_NOT_FOUND", NOT_FOUND;
    /// A rate limit is exceeded.
    RateLimitExceeded = "RATE_LIMIT_EXCEEDED", TOO_MANY_REQUESTS;
    /// The signature over the nonce is not valid.
    InvalidSignature = "INVALID_SIGNATURE", BAD_REQUEST;
    /// The body cannot be read, or fields of the request are missing, invalid or unknown.
    ValidationError = "VALIDATION_ERROR", BAD_REQUEST;
    /// The request came over plain HTTP.
    HttpsRequired = "HTTPS_REQUIRED", BAD_REQUEST;
    /// The path, or a resource without a code of its own (such as an API key), does not exist.
    NotFound = "NOT_FOUND", NOT_FOUND;
    /// The service does not exist.
    ServiceNotFound = "SERVICE_NOT_FOUND", NOT_FOUND;
    /// The role does not exist at this service.
    RoleNotFound = "ROLE_NOT_FOUND", NOT_FOUND;
    /// The service, or the whole deployment, does not have this webhook.
    WebhookNotFound = "WEBHOOK_NOT_FOUND", NOT_FOUND;
    /// The path exists, but does not support the method.
    MethodNotAllowed = "METHOD_NOT_ALLOWED", METHOD_NOT_ALLOWED;
    /// The request conflicts with the current state.
    Conflict = "CONFLICT", CONFLICT;
    /// The body is larger than the limit.
    PayloadTooLarge = "PAYLOAD_TOO_LARGE", PAYLOAD_TOO_LARGE;
    /// The `Content-Type` of the body is not supported.
    UnsupportedMediaType = "UNSUPPORTED_MEDIA_TYPE", UNSUPPORTED_MEDIA_TYPE;
    /// An internal error.
    Internal = "INTERNAL", INTERNAL_SERVER_ERROR;
    /// The server cannot process the request now.
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
