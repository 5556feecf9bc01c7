//! What an access token says, claim by claim.

use crate::{AgentId, Permission, Revision, RoleName, ServiceId, SessionId, Timestamp, TokenId, TrustScore};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The claims of an access token: those of the specification, and ours (`name`, `sid`, `rev`, `until`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Claims {
    /// Who issued it: the public URL of the deployment.
    pub iss: String,
    /// Whom it speaks of.
    pub sub: AgentId,
    /// For whom: a service's id, or the issuer itself for a token that is bound to no service.
    pub aud: String,
    /// Issued at, Unix seconds.
    pub iat: i64,
    /// Not before, Unix seconds.
    pub nbf: i64,
    /// Expires at, Unix seconds, exactly.
    pub exp: i64,
    /// This token.
    pub jti: TokenId,
    /// The login that this token comes from.
    pub sid: SessionId,
    /// The revision as of which roles, permissions and trust are stated.
    pub rev: Revision,
    /// The agent's display name; it never changes.
    pub name: String,
    /// Names of the roles held at the audience.
    pub roles: Vec<RoleName>,
    /// What these roles permit.
    pub permissions: Vec<Permission>,
    /// Trust in points.
    #[serde(rename = "trustScore")]
    pub trust_score: TrustScore,
    /// For roles that end before the token: the Unix second at which they do.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub until: BTreeMap<RoleName, i64>,
}

/// Whom a token is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Audience {
    /// One service.
    Service(ServiceId),
    /// No service in particular: the agent held no role anywhere.
    Unbound,
}

impl Audience {
    /// The `aud` claim for this audience.
    pub fn claim(self, issuer: &str) -> String {
        match self {
            Self::Service(service) => service.to_string(),
            Self::Unbound => issuer.to_owned(),
        }
    }
}

impl Claims {
    /// The audience, or `None` if `aud` names neither a service nor the issuer.
    pub fn audience(&self) -> Option<Audience> {
        if self.aud == self.iss { Some(Audience::Unbound) } else { self.aud.parse().ok().map(Audience::Service) }
    }

    /// The instant from which the token is dead.
    pub const fn expires_at(&self) -> Timestamp {
        Timestamp::from_seconds(self.exp)
    }
}
