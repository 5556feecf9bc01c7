//! Sessions and refresh tokens. A session begins with a login; each refresh replaces the refresh token of the session.

use super::credential::SecretHash;
use countersign_identity::{AgentId, Reason, RefreshId, Revision, Scope, ServiceId, SessionId, Timestamp};

/// A session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// Unique identifier, the `sid` claim of access tokens.
    pub id: SessionId,
    /// Agent that logged in.
    pub agent: AgentId,
    /// Service that the tokens of the session are bound to; `None` for unbound tokens.
    pub service: Option<ServiceId>,
    /// The permissions that the client asked for; `None` if the tokens grant whatever the roles of the agent grant.
    pub scope: Option<Scope>,
    /// Time of the login.
    pub started_at: Timestamp,
    /// Feed revision at the login.
    pub started_revision: Revision,
    /// Time from which the session can no longer be refreshed. The end of a session is also its expiry.
    pub expires_at: Timestamp,
    /// Time at which the session was ended; `None` if it was not ended.
    pub ended_at: Option<Timestamp>,
}

/// A refresh token, without its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefreshToken {
    /// Unique identifier.
    pub id: RefreshId,
    /// Session that the token belongs to.
    pub session: SessionId,
    /// Hash of the secret.
    pub secret: SecretHash,
    /// Time of issue.
    pub issued_at: Timestamp,
    /// Time of use; `None` if the token is unused.
    pub used_at: Option<Timestamp>,
}

impl Session {
    /// Checks whether a refresh token whose secret is correct may refresh the session.
    pub fn check_refresh(&self, token: &RefreshToken, cutoff: Revision, now: Timestamp) -> Result<(), Reason> {
        if token.used_at.is_some() {
            return Err(Reason::RefreshReused);
        }
        if self.ended_at.is_some() || self.started_revision < cutoff {
            return Err(Reason::RefreshRevoked);
        }
        if now >= self.expires_at { Err(Reason::RefreshExpired) } else { Ok(()) }
    }
}
