//! Authenticated callers, and authorization checks that need no database.

use super::{
    agent::Owner,
    service::{KeyScope, ServiceKey},
};
use countersign_identity::{Reason, ServiceId};
use std::sync::Arc;

/// A human user with a verified token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Human {
    /// Token issuer and subject of the user.
    pub identity: Owner,
    /// Whether the token has the admin claim. Administrators may manage all resources.
    pub is_admin: bool,
}

/// The sender of a valid credential.
#[derive(Debug, Clone)]
pub enum Caller {
    /// A service that sent one of its API keys.
    Service(Arc<ServiceKey>),
    Human(Human),
}

impl Caller {
    /// Requires an API key of the given service, of any scope. The error for a key of another service does not reveal whether
    /// the given service exists.
    pub fn require_key_of(&self, service: ServiceId) -> Result<&ServiceKey, Reason> {
        match self {
            Self::Service(key) if key.service == service => Ok(key),
            Self::Service(_) => Err(Reason::NotYours),
            Self::Human(_) => Err(Reason::ServiceKeyMissing),
        }
    }

    /// Requires an API key of the given service with scope `full`.
    pub fn require_full_scope_key(&self, service: ServiceId) -> Result<(), Reason> {
        match self.require_key_of(service)?.scope {
            KeyScope::Full => Ok(()),
            KeyScope::Sync => Err(Reason::ScopeInsufficient),
        }
    }
}

impl Human {
    /// Requires that the caller is an administrator, for resources of the whole Countersign deployment.
    pub const fn require_admin(&self) -> Result<(), Reason> {
        if self.is_admin { Ok(()) } else { Err(Reason::AdminRequired) }
    }

    /// Requires that the caller is the given owner or an administrator.
    pub fn require_owner(&self, owner: Option<&Owner>) -> Result<(), Reason> {
        if self.is_admin || owner == Some(&self.identity) { Ok(()) } else { Err(Reason::NotYours) }
    }
}
