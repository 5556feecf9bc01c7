//! Who is asking.

use super::{
    agent::Owner,
    service::{KeyScope, Service, ServiceKey},
};
use countersign_identity::{Reason, ServiceId};

/// A person with a verified token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Human {
    /// Who it is.
    pub owner: Owner,
    /// Whether the person manages everything.
    pub admin: bool,
}

/// Whoever sent a valid credential.
#[derive(Debug, Clone)]
pub enum Caller {
    /// A service, by one of its API keys.
    Service(ServiceKey),
    /// A person.
    Human(Human),
}

impl Caller {
    /// A key of this very service, whatever its scope. Another service's key learns nothing, not even
    /// whether the service exists.
    pub fn require_key_of(&self, service: ServiceId) -> Result<&ServiceKey, Reason> {
        match self {
            Self::Service(key) if key.service == service => Ok(key),
            Self::Service(_) => Err(Reason::NotYours),
            Self::Human(_) => Err(Reason::ServiceKeyMissing),
        }
    }

    /// A key of this very service with full scope.
    pub fn require_full_key_of(&self, service: ServiceId) -> Result<(), Reason> {
        match self.require_key_of(service)?.scope {
            KeyScope::Full => Ok(()),
            KeyScope::Sync => Err(Reason::ScopeInsufficient),
        }
    }
}

impl Human {
    /// The owner of the service, or an administrator.
    pub fn require_owner_of(&self, service: &Service) -> Result<(), Reason> {
        self.require_owner(Some(&service.owner))
    }

    /// An administrator: for what belongs to the whole deployment.
    pub const fn require_admin(&self) -> Result<(), Reason> {
        if self.admin { Ok(()) } else { Err(Reason::AdminRequired) }
    }

    /// The given owner, or an administrator.
    pub fn require_owner(&self, owner: Option<&Owner>) -> Result<(), Reason> {
        if self.admin || owner == Some(&self.owner) { Ok(()) } else { Err(Reason::NotYours) }
    }
}
