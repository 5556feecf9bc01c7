//! The claims of an access token.

use crate::{AgentId, Permission, Revision, RoleName, ServiceId, SessionId, Timestamp, TokenId, TrustScore};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The claims of an access token. The private claims are `name`, `sid`, `rev` and `until`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Claims {
    /// Issuer: the public URL of the Countersign deployment.
    pub iss: String,
    /// Subject: the agent.
    pub sub: AgentId,
    /// Audience: a service id, or the issuer for an unbound token (a token for no service).
    pub aud: String,
    /// Issued at, in Unix seconds.
    pub iat: i64,
    /// Not before, in Unix seconds.
    pub nbf: i64,
    /// Expires at, in Unix seconds; checked without leeway.
    pub exp: i64,
    /// The id of the token.
    pub jti: TokenId,
    /// The id of the session to which the token belongs.
    pub sid: SessionId,
    /// The revision at which roles, permissions and trust were read.
    pub rev: Revision,
    /// The agent's display name, which never changes.
    pub name: String,
    /// Names of the agent's roles at the audience.
    pub roles: Vec<RoleName>,
    /// The permissions that the roles grant.
    pub permissions: Vec<Permission>,
    /// The trust score, serialized in points.
    #[serde(rename = "trustScore")]
    pub trust_score: TrustScore,
    /// The end, in Unix seconds, of each role assignment that ends before the token expires.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub until: BTreeMap<RoleName, i64>,
}

/// The service that a token is issued for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Audience {
    /// The token is for this service.
    Service(ServiceId),
    /// The token is for no service: the agent had no role when the token was issued.
    Unbound,
}

impl Audience {
    /// The value of the `aud` claim.
    pub fn claim(self, issuer: &str) -> String {
        match self {
            Self::Service(service) => service.to_string(),
            Self::Unbound => issuer.to_owned(),
        }
    }
}

impl Claims {
    /// The audience; `None` if `aud` is neither a service id nor the issuer.
    pub fn audience(&self) -> Option<Audience> {
        if self.aud == self.iss { Some(Audience::Unbound) } else { self.aud.parse().ok().map(Audience::Service) }
    }

    /// The time at which the token expires.
    pub const fn expires_at(&self) -> Timestamp {
        Timestamp::from_seconds(self.exp)
    }
}
