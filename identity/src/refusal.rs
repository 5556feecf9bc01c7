//! The closed list of reasons for a denial.
//!
//! A reason is reported as `details.reason` in an error body, in the header `x-agent-reason` and as a metric label.
//! Invariant: the message of a reason is fixed and contains no input.

use crate::time::Timestamp;

/// An error code of the HTTP API, with its HTTP status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Code {
    /// HTTP 401: the credentials are missing, invalid, expired or revoked.
    AuthenticationFailed,
    /// HTTP 403: the caller is authenticated, but not authorized.
    InsufficientPermissions,
    /// HTTP 503: the server cannot decide now, so it refuses the request.
    ServiceUnavailable,
}

impl Code {
    /// The value of `error.code` in an error body.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AuthenticationFailed => "AUTHENTICATION_FAILED",
            Self::InsufficientPermissions => "INSUFFICIENT_PERMISSIONS",
            Self::ServiceUnavailable => "SERVICE_UNAVAILABLE",
        }
    }

    /// The HTTP status of the code.
    pub const fn status(self) -> u16 {
        match self {
            Self::AuthenticationFailed => 401,
            Self::InsufficientPermissions => 403,
            Self::ServiceUnavailable => 503,
        }
    }
}

macro_rules! reasons {
    ($($code:ident { $($(#[$doc:meta])* $name:ident = $text:literal, $message:literal;)+ })+) => {
        /// Why a credential or a request is refused.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Reason {
            $($($(#[$doc])* $name,)+)+
        }

        impl Reason {
            /// All reasons, with which metrics create every time series at zero.
            pub const ALL: &'static [Self] = &[$($(Self::$name,)+)+];

            /// The name of the reason in error bodies, headers and metrics.
            pub const fn as_str(self) -> &'static str {
                match self { $($(Self::$name => $text,)+)+ }
            }

            /// The value of `error.message` in an error body.
            pub const fn message(self) -> &'static str {
                match self { $($(Self::$name => $message,)+)+ }
            }

            /// The error code for this reason.
            pub const fn code(self) -> Code {
                match self { $($(Self::$name)|+ => Code::$code,)+ }
            }
        }
    };
}

reasons! {
    AuthenticationFailed {
        /// The request has no access token.
        TokenMissing = "token_missing", "An agent access token is required";
        /// The request has more than one token, or a repeated header.
        TokenRepeated = "token_repeated", "Exactly one agent access token must be sent";
        /// The token is not a JWT with the header that the control plane writes.
        TokenMalformed = "token_malformed", "The agent access token is malformed";
        /// No published key has the token's `kid`.
        TokenKeyUnknown = "token_key_unknown", "The agent access token is signed by an unknown key";
        /// The signature of the token does not verify.
        TokenSignatureInvalid = "token_signature_invalid", "The signature of the agent access token is invalid";
        /// A claim is missing or has the wrong type, or the claim `iss` is not the expected issuer.
        TokenClaimsInvalid = "token_claims_invalid", "The claims of the agent access token are invalid";
        /// The claim `nbf` or `iat` is in the future.
        TokenNotYetValid = "token_not_yet_valid", "The agent access token is not valid yet";
        /// The time of the claim `exp` has passed.
        TokenExpired = "token_expired", "The agent access token has expired";
        /// The token was issued for another service.
        TokenAudienceMismatch = "token_audience_mismatch", "The agent access token was issued for another service: log in with the serviceId of this service, or request a token with its id as `resource`";
        /// The token is unbound (issued for no service), and this service does not accept unbound tokens.
        TokenUnbound = "token_unbound", "This service accepts only tokens that were issued for it: log in with its serviceId";
        /// The `rev` of the token is below the revision floor: changes after that revision may have been pruned.
        TokenSuperseded = "token_superseded", "The agent access token is too old to be verified: log in again";
        /// The token, its session or all tokens of the agent were revoked.
        TokenRevoked = "token_revoked", "The agent access token has been revoked";
        /// The service API key is missing.
        ServiceKeyMissing = "service_key_missing", "A service API key is required";
        /// The service API key is unknown, wrong or revoked.
        ServiceKeyInvalid = "service_key_invalid", "The service API key is invalid";
        /// The token of a human user is missing.
        HumanTokenMissing = "human_token_missing", "A human user's token is required";
        /// The token of a human user does not verify.
        HumanTokenInvalid = "human_token_invalid", "The human user's token is invalid";
        /// The token of a human user has expired.
        HumanTokenExpired = "human_token_expired", "The human user's token has expired";
        /// The request requires a credential, but does not contain exactly one credential.
        CredentialsMalformed = "credentials_malformed", "Send exactly one credential as `Authorization: Bearer <credential>`";
        /// The challenge was not issued by this Countersign deployment.
        ChallengeInvalid = "challenge_invalid", "The challenge is unknown";
        /// The challenge has expired.
        ChallengeExpired = "challenge_expired", "The challenge has expired: request a new one";
        /// The challenge was used before.
        ChallengeUsed = "challenge_used", "The challenge has been used: request a new one";
        /// The client assertion of an OAuth client is malformed, its claims are wrong, or its agent is unknown.
        AssertionInvalid = "assertion_invalid", "The client assertion is invalid";
        /// The client assertion has expired, or it may have been used before the database was restored from a backup.
        AssertionExpired = "assertion_expired", "The client assertion has expired: make a new one";
        /// The client assertion was used before.
        AssertionUsed = "assertion_used", "The client assertion has been used: make a new one with another jti";
        /// The refresh token was not issued by this Countersign deployment.
        RefreshInvalid = "refresh_invalid", "The refresh token is unknown";
        /// The refresh token has expired.
        RefreshExpired = "refresh_expired", "The refresh token has expired: log in again";
        /// The refresh token was used before. The session ends, because a refresh token that is used twice was probably copied.
        RefreshReused = "refresh_reused", "The refresh token was used before: its session has ended";
        /// The session of the refresh token has ended.
        RefreshRevoked = "refresh_revoked", "The refresh token has been revoked: log in again";
    }
    InsufficientPermissions {
        /// The agent is suspended.
        AgentSuspended = "agent_suspended", "The agent is suspended";
        /// The agent is revoked permanently.
        AgentRevoked = "agent_revoked", "The agent is revoked";
        /// The agent has no active role at this service.
        NoRole = "no_role", "The agent holds no role at this service";
        /// A role that the route requires is missing.
        RoleMissing = "role_missing", "The agent lacks a required role";
        /// A permission that the route requires is missing.
        PermissionMissing = "permission_missing", "The agent lacks a required permission";
        /// The roles of the agent grant the permission that the route requires, but the token was requested with a scope that excludes it.
        TokenScopeInsufficient = "token_scope_insufficient", "The access token was requested with a scope that excludes a required permission: request one with a wider scope";
        /// The trust score is below what the route requires.
        TrustTooLow = "trust_too_low", "The trust score of the agent is too low";
        /// The requested resource belongs to another service or owner than the credential.
        NotYours = "not_yours", "This credential does not give access to this resource";
        /// The API key's scope does not cover the request.
        ScopeInsufficient = "scope_insufficient", "The scope of the service API key does not cover this request";
        /// The path of the request has several readings, and rules of the sidecar depend on the path.
        PathAmbiguous = "path_ambiguous", "The path of the request is not in the only form that the sidecar accepts: send it without encoded slashes, `;`, `.`, `..` and empty segments";
        /// The host of the request is not a host name, and rules of the sidecar depend on the host.
        HostInvalid = "host_invalid", "The host of the request is not a host name";
        /// A rule of the sidecar is about MCP, and the request is not exactly one MCP message.
        McpRequestInvalid = "mcp_request_invalid", "The request is not exactly one MCP message, or its headers could mean another one";
        /// A rule of the sidecar is about MCP, and allows neither the method nor the tool, prompt or resource of the message.
        McpNotAllowed = "mcp_not_allowed", "No rule allows this MCP method, tool, prompt or resource";
        /// Only an administrator may make the request.
        AdminRequired = "admin_required", "Only an administrator may do this";
    }
    ServiceUnavailable {
        /// The keys that verify a human user's token cannot be fetched from the issuer.
        HumanIssuerUnavailable = "human_issuer_unavailable", "The public keys of the issuer of the human user's token are not available";
        /// The sidecar has no data from the control plane yet.
        ViewMissing = "view_missing", "The sidecar has no data from the control plane yet";
        /// The control plane's last confirmation that the sidecar's data is current is too old.
        ViewStale = "view_stale", "The data from the control plane is too old to decide";
        /// The route names a service for which the sidecar has no API key.
        ServiceUnknown = "service_unknown", "The route names a service for which the sidecar has no API key";
        /// The API key of the service was removed from the settings of the sidecar while the sidecar ran.
        SyncKeyRemoved = "sync_key_removed", "The API key of this service was removed from the sidecar";
        /// The control plane knows no API key that the sidecar has for the service.
        SyncKeyRefused = "sync_key_refused", "The control plane refuses the sidecar's API key of this service";
        /// The context extensions of the route are invalid.
        RuleInvalid = "rule_invalid", "The rule of this route is invalid";
        /// The authorization request of the proxy has no HTTP attributes.
        RequestInvalid = "request_invalid", "The authorization request has no HTTP attributes";
        /// An internal error occurred.
        Internal = "internal", "The request could not be evaluated because of an internal error";
    }
}

impl Reason {
    /// Whether a token is refused because it was not issued for the service. The error body then names the service.
    pub const fn is_wrong_audience(self) -> bool {
        matches!(self, Self::TokenAudienceMismatch | Self::TokenUnbound)
    }
}

/// Why a request is refused: the reason and its details.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// Why the request is refused.
    pub reason: Reason,
    /// The expiry time of the token; only for [`Reason::TokenExpired`].
    pub expired_at: Option<Timestamp>,
}

impl Refusal {
    /// The refusal of an expired token.
    pub const fn expired(at: Timestamp) -> Self {
        Self { reason: Reason::TokenExpired, expired_at: Some(at) }
    }
}

impl From<Reason> for Refusal {
    fn from(reason: Reason) -> Self {
        Self { reason, expired_at: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_distinct_and_valid_as_labels_and_headers() {
        let mut seen = std::collections::BTreeSet::new();
        for reason in Reason::ALL {
            assert!(seen.insert(reason.as_str()));
            assert!(reason.as_str().bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'));
            assert!(reason.code().status() >= 401);
        }
    }
}
