//! A service: whoever defines roles and verifies agents, and the API keys it acts with.

use super::{agent::Owner, credential::SecretHash, text::DisplayName};
use countersign_identity::{ApiKeyId, ServiceId, Timestamp};

/// A service.
#[derive(Debug, Clone)]
pub struct Service {
    /// Its identifier.
    pub id: ServiceId,
    /// Who made it.
    pub owner: Owner,
    /// What people call it.
    pub name: DisplayName,
    /// Whether tokens that are bound to no service are accepted.
    pub accepts_unbound: bool,
    /// When it was made.
    pub created_at: Timestamp,
}

/// What a service API key may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyScope {
    /// Everything at its service.
    Full,
    /// Follow the stream and verify tokens, nothing else: what sidecars carry.
    Sync,
}

impl KeyScope {
    /// The scope as it stands in JSON and in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Sync => "sync",
        }
    }

    /// Reads what [`Self::as_str`] wrote.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Full, Self::Sync].into_iter().find(|scope| scope.as_str() == text)
    }
}

/// A service API key, without its secret.
#[derive(Debug, Clone)]
pub struct ServiceKey {
    /// Its identifier.
    pub id: ApiKeyId,
    /// The service it belongs to.
    pub service: ServiceId,
    /// What people call it.
    pub name: DisplayName,
    /// What it may do.
    pub scope: KeyScope,
    /// What is kept of its secret.
    pub secret: SecretHash,
    /// When it was made.
    pub created_at: Timestamp,
    /// Since when it is good for nothing.
    pub revoked_at: Option<Timestamp>,
}
