//! Every way of saying no, as one closed list.
//!
//! A reason is what a caller reads in `details.reason`, what the proxy sets as `x-agent-reason`, and a
//! label of a metric: so the list is closed and no text in it ever carries input.

use crate::time::Timestamp;

/// The code of an error as in section 7 of the specification, with its HTTP status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Code {
    /// 401: credentials are missing, wrong, expired or dead.
    AuthenticationFailed,
    /// 403: known, but not allowed.
    InsufficientPermissions,
    /// 503: we cannot know, so we refuse.
    ServiceUnavailable,
}

impl Code {
    /// The code as it stands in an error body.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AuthenticationFailed => "AUTHENTICATION_FAILED",
            Self::InsufficientPermissions => "INSUFFICIENT_PERMISSIONS",
            Self::ServiceUnavailable => "SERVICE_UNAVAILABLE",
        }
    }

    /// The HTTP status that goes with the code.
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
            /// Every reason there is, for metrics that create their children at zero.
            pub const ALL: &'static [Self] = &[$($(Self::$name,)+)+];

            /// The reason as it stands in bodies, headers and metrics.
            pub const fn as_str(self) -> &'static str {
                match self { $($(Self::$name => $text,)+)+ }
            }

            /// One sentence for people.
            pub const fn message(self) -> &'static str {
                match self { $($(Self::$name => $message,)+)+ }
            }

            /// The error code under which it is reported.
            pub const fn code(self) -> Code {
                match self { $($(Self::$name)|+ => Code::$code,)+ }
            }
        }
    };
}

reasons! {
    AuthenticationFailed {
        /// No access token came with the request.
        TokenMissing = "token_missing", "An agent access token is required";
        /// More than one token, or a header given twice.
        TokenRepeated = "token_repeated", "Exactly one agent access token must be sent";
        /// Not a JWT in the form we issue.
        TokenMalformed = "token_malformed", "The agent access token is malformed";
        /// No published key has the token's `kid`.
        TokenKeyUnknown = "token_key_unknown", "The agent access token is signed by an unknown key";
        /// The signature does not fit.
        TokenSignatureInvalid = "token_signature_invalid", "The signature of the agent access token is invalid";
        /// Claims are missing, of the wrong type, or of another issuer.
        TokenClaimsInvalid = "token_claims_invalid", "The claims of the agent access token are invalid";
        /// `nbf` or `iat` lies ahead.
        TokenNotYetValid = "token_not_yet_valid", "The agent access token is not valid yet";
        /// `exp` has passed.
        TokenExpired = "token_expired", "The agent access token has expired";
        /// Issued for another service.
        TokenAudienceMismatch = "token_audience_mismatch", "The agent access token was issued for another service";
        /// Issued for no service, and this one does not accept that.
        TokenUnbound = "token_unbound", "This service does not accept tokens that are bound to no service";
        /// Older than what is remembered of changes.
        TokenSuperseded = "token_superseded", "The agent access token is too old to be judged: log in again";
        /// The token, its login or all tokens of the agent were revoked.
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
        /// A credential is needed, and none or several were sent.
        CredentialsMalformed = "credentials_malformed", "Send exactly one credential as `Authorization: Bearer <credential>`";
        /// We never issued this challenge.
        ChallengeInvalid = "challenge_invalid", "The challenge is unknown";
        /// The challenge's time is over.
        ChallengeExpired = "challenge_expired", "The challenge has expired: ask for a new one";
        /// Somebody logged in with this challenge already.
        ChallengeUsed = "challenge_used", "The challenge has been used: ask for a new one";
        /// We never issued this refresh token.
        RefreshInvalid = "refresh_invalid", "The refresh token is unknown";
        /// The refresh token's time is over.
        RefreshExpired = "refresh_expired", "The refresh token has expired: log in again";
        /// A used refresh token came again, so the login it belongs to is ended.
        RefreshReused = "refresh_reused", "The refresh token was used before: its login has been ended";
        /// The login it belongs to has ended.
        RefreshRevoked = "refresh_revoked", "The refresh token has been revoked: log in again";
    }
    InsufficientPermissions {
        /// The agent is suspended.
        AgentSuspended = "agent_suspended", "The agent is suspended";
        /// The agent is revoked for good.
        AgentRevoked = "agent_revoked", "The agent is revoked";
        /// The agent holds no live role at this service.
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
        /// The keys of the issuer of a human's token cannot be had.
        HumanIssuerUnavailable = "human_issuer_unavailable", "The issuer of the human's token cannot be asked for its keys right now";
        /// Nothing has been learnt from the control plane yet.
        ViewMissing = "view_missing", "No data from the control plane yet";
        /// The last contact with the control plane is too long ago.
        ViewStale = "view_stale", "The data from the control plane is too old to decide";
        /// The route names a service that is not served here.
        ServiceUnknown = "service_unknown", "The route names a service that this authorizer does not follow";
        /// The route's rule does not parse.
        RuleInvalid = "rule_invalid", "The rule of this route is invalid";
        /// The proxy sent a request that cannot be judged.
        RequestInvalid = "request_invalid", "The authorization request cannot be read";
        /// A fault of our own.
        Internal = "internal", "The request could not be judged";
    }
}

/// A reason with what its reader may need to act on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub reason: Reason,
    /// For an expired token: since when.
    pub expired_at: Option<Timestamp>,
}

impl Refusal {
    /// A token that expired at the given instant.
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
    fn reasons_are_distinct_and_fit_a_label_and_a_header() {
        let mut seen = std::collections::BTreeSet::new();
        for reason in Reason::ALL {
            assert!(seen.insert(reason.as_str()));
            assert!(reason.as_str().bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'));
            assert!(reason.code().status() >= 401);
        }
    }
}
