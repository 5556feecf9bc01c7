//! A login and the refresh tokens that follow one another in it.

use super::credential::SecretHash;
use countersign_identity::{AgentId, Reason, RefreshId, Revision, ServiceId, SessionId, Timestamp};

/// A login.
#[derive(Debug, Clone)]
pub struct Session {
    /// Its identifier, the `sid` of its tokens.
    pub id: SessionId,
    /// Who logged in.
    pub agent: AgentId,
    /// The service its tokens are for; none if it is bound to no service.
    pub service: Option<ServiceId>,
    /// When.
    pub begun_at: Timestamp,
    /// As of which revision.
    pub begun_revision: Revision,
    /// When it ends by itself.
    pub expires_at: Timestamp,
    /// When it was ended.
    pub ended_at: Option<Timestamp>,
}

/// A refresh token, without its secret.
#[derive(Debug, Clone)]
pub struct RefreshToken {
    /// Its identifier.
    pub id: RefreshId,
    /// The login it continues.
    pub session: SessionId,
    /// What is kept of its secret.
    pub secret: SecretHash,
    /// When it was issued.
    pub issued_at: Timestamp,
    /// When it was used.
    pub used_at: Option<Timestamp>,
}

impl Session {
    /// Whether a refresh token with the right secret may continue this login now.
    pub fn may_continue(&self, token: &RefreshToken, cutoff: Revision, now: Timestamp) -> Result<(), Reason> {
        if token.used_at.is_some() {
            return Err(Reason::RefreshReused);
        }
        if self.ended_at.is_some() || self.begun_revision < cutoff {
            return Err(Reason::RefreshRevoked);
        }
        if now >= self.expires_at { Err(Reason::RefreshExpired) } else { Ok(()) }
    }
}
