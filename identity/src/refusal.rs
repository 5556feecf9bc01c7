//! The closed list of reasons for a denial.
//!
//! A reason is the value of `details.reason` in an error body, of the header `x-agent-reason` and of a metric label.
//! Invariant: the list is closed, and no message contains input.

use crate::time::Timestamp;

/// An error code of section 7 of the specification, with its HTTP status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Code {
    /// 401: credentials are missing, invalid, expired or revoked.
    AuthenticationFailed,
    /// 403: authenticated, but not authorized.
    InsufficientPermissions,
    /// 503: the decision is not possible now, so the request is refused.
    ServiceUnavailable,
}

impl Code {
    /// The code as in an error body.
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
            /// All reasons, for metrics that create every label value at zero.
            pub const ALL: &'static [Self] = &[$($(Self::$name,)+)+];

            /// The reason as in bodies, headers and metrics.
            pub const fn as_str(self) -> &'static str {
                match self { $($(Self::$name => $text,)+)+ }
            }

            /// A sentence for human readers.
            pub const fn message(self) -> &'static str {
                match self { $($(Self::$name => $message,)+)+ }
            }

            /// The error code that it is reported under.
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
        /// More than one token, or a repeated header.
        TokenRepeated = "token_repeated", "Exactly one agent access token must be sent";
        /// Not a JWT in the issued form.
        TokenMalformed = "token_malformed", "The agent access token is malformed";
        /// No published key has the token's `kid`.
        TokenKeyUnknown = "token_key_unknown", "The agent access token is signed by an unknown key";
        /// The signature does not verify.
        TokenSignatureInvalid = "token_signature_invalid", "The signature of the agent access token is invalid";
        /// Claims are missing, of the wrong type, or of another issuer.
        TokenClaimsInvalid = "token_claims_invalid", "The claims of the agent access token are invalid";
        /// `nbf` or `iat` is in the future.
        TokenNotYetValid = "token_not_yet_valid", "The agent access token is not valid yet";
        /// `exp` has passed.
        TokenExpired = "token_expired", "The agent access token has expired";
        /// Issued for another service.
        TokenAudienceMismatch = "token_audience_mismatch", "The agent access token was issued for another service";
        /// The token is unbound, and this service does not accept unbound tokens.
        TokenUnbound = "token_unbound", "This service does not accept tokens that are bound to no service";
        /// The `rev` of the token is below the floor, so later changes may be missing.
        TokenSuperseded = "token_superseded", "The agent access token is too old to be verified: log in again";
        /// The token, its session or all tokens of the agent were revoked.
        TokenRevoked = "token_revoked", "The agent access token has been revoked";
        /// The service API key is missing.
        ServiceKeyMissing = "service_key_missing", "A service API key is required";
        /// The service API key is unknown, wrong or revoked.
        ServiceKeyInvalid = "service_key_invalid", "The service API key is invalid";
        /// The human's token is missing.
        HumanTokenMissing = "human_token_missing", "A human's token is required";
        /// The human's token does not verify.
        HumanTokenInvalid = "human_token_invalid", "The human's token is invalid";
        /// The human's token has expired.
        HumanTokenExpired = "human_token_expired", "The human's token has expired";
        /// A credential is required, and none or several were sent.
        CredentialsMalformed = "credentials_malformed", "Send exactly one credential as `Authorization: Bearer <credential>`";
        /// The challenge was not issued here.
        ChallengeInvalid = "challenge_invalid", "The challenge is unknown";
        /// The challenge has expired.
        ChallengeExpired = "challenge_expired", "The challenge has expired: request a new one";
        /// The challenge was already used for a login.
        ChallengeUsed = "challenge_used", "The challenge has been used: request a new one";
        /// The refresh token was not issued here.
        RefreshInvalid = "refresh_invalid", "The refresh token is unknown";
        /// The refresh token has expired.
        RefreshExpired = "refresh_expired", "The refresh token has expired: log in again";
        /// The refresh token was used before: it was copied, so its session is ended.
        RefreshReused = "refresh_reused", "The refresh token was used before: its session has been ended";
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
        /// The trust score is below what the route requires.
        TrustTooLow = "trust_too_low", "The trust score of the agent is too low";
        /// The credential belongs to another service or owner.
        NotYours = "not_yours", "This credential does not give access to this resource";
        /// The API key's scope does not cover the request.
        ScopeInsufficient = "scope_insufficient", "The scope of the service API key does not cover this request";
        /// Only an administrator may do this.
        AdminRequired = "admin_required", "Only an administrator may do this";
    }
    ServiceUnavailable {
        /// The keys of the issuer of a human's token cannot be fetched.
        HumanIssuerUnavailable = "human_issuer_unavailable", "The keys of the issuer of the human's token are not available right now";
        /// The sidecar has no data from the control plane yet.
        ViewMissing = "view_missing", "No data from the control plane yet";
        /// The last confirmation by the control plane is too old.
        ViewStale = "view_stale", "The data from the control plane is too old to decide";
        /// The route names a service that this sidecar does not follow.
        ServiceUnknown = "service_unknown", "The route names a service that this authorizer does not follow";
        /// The rule of the route is invalid.
        RuleInvalid = "rule_invalid", "The rule of this route is invalid";
        /// The proxy sent an authorization request that cannot be read.
        RequestInvalid = "request_invalid", "The authorization request cannot be read";
        /// An internal error.
        Internal = "internal", "The request could not be evaluated because of an internal error";
    }
}

/// A reason with its details.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// The reason.
    pub reason: Reason,
    /// The expiry time of an expired token.
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
