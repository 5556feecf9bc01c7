//! Services and their API keys.

use super::{
    agent::Owner,
    credential::SecretHash,
    resource_uri::ResourceUris,
    string_enum::string_enum,
    text::{DisplayName, ManagedBy},
};
use countersign_identity::{ApiKeyId, ServiceId, Timestamp};
use std::time::Duration;

/// A service, which defines roles and verifies agents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    pub id: ServiceId,
    /// Human user who owns the service.
    pub owner: Owner,
    pub name: DisplayName,
    /// Whether the service accepts tokens that are not bound to a service.
    pub accepts_unbound: bool,
    /// The URLs under which clients reach the service.
    pub resource_uris: ResourceUris,
    /// The label (`managedBy`) of the set of files that declares the service, if any.
    pub managed_by: Option<ManagedBy>,
    pub created_at: Timestamp,
    /// Time of deletion; `None` while the service exists.
    pub deleted_at: Option<Timestamp>,
}

/// The settings of a service that its sidecars receive.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServiceSettings {
    /// Whether the service accepts tokens that are not bound to a service.
    pub accepts_unbound: bool,
    /// The URLs under which clients reach the service.
    pub resource_uris: ResourceUris,
}

impl Service {
    /// The settings that the sidecars of the service receive.
    pub fn settings(&self) -> ServiceSettings {
        ServiceSettings { accepts_unbound: self.accepts_unbound, resource_uris: self.resource_uris.clone() }
    }
}

/// What a webhook, an event or an audit chain belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServiceOrDeployment {
    Service(ServiceId),
    /// The whole Countersign deployment.
    Deployment,
}

/// The name of the audit chain of the whole Countersign deployment, for actions that concern no single service.
pub const DEPLOYMENT_CHAIN: &str = "deployment";

impl ServiceOrDeployment {
    /// The service; the whole deployment if `service` is `None`.
    pub fn of(service: Option<ServiceId>) -> Self {
        service.map_or(Self::Deployment, Self::Service)
    }

    /// The service; `None` for the whole Countersign deployment.
    pub const fn service(self) -> Option<ServiceId> {
        match self {
            Self::Service(service) => Some(service),
            Self::Deployment => None,
        }
    }

    /// The name of the audit chain.
    pub fn audit_chain(self) -> String {
        self.service().map_or_else(|| DEPLOYMENT_CHAIN.to_owned(), |service| service.to_string())
    }

    /// The inverse of [`Self::audit_chain`]; `None` if no audit chain can have this name.
    pub fn of_audit_chain(name: &str) -> Option<Self> {
        if name == DEPLOYMENT_CHAIN { Some(Self::Deployment) } else { name.parse().ok().map(Self::Service) }
    }
}

/// How long the receiver of an offer can accept the service.
pub const TRANSFER_LIFETIME: Duration = Duration::from_hours(7 * 24);

/// An offer to another person to become the owner of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceTransfer {
    pub service: ServiceId,
    /// Display name of the service.
    pub name: DisplayName,
    /// The owner of the service, who offers it.
    pub offered_by: Owner,
    /// The person who may accept the offer.
    pub new_owner: Owner,
    pub offered_at: Timestamp,
    /// Time from which the offer can no longer be accepted.
    pub expires_at: Timestamp,
}

string_enum! {
    /// Scope of a service API key.
    KeyScope {
        /// All operations on the service that the key belongs to.
        Full = "full";
        /// Only the sync stream and the verification of tokens. Sidecars use keys of scope `sync`.
        Sync = "sync";
    }
}

/// A service API key, without its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceKey {
    pub id: ApiKeyId,
    /// Service that the key belongs to.
    pub service: ServiceId,
    /// The owner of the service when the key was read.
    pub owner: Owner,
    pub name: DisplayName,
    /// Allowed operations.
    pub scope: KeyScope,
    /// The label (`managedBy`) of the set of files that declares the API key, if any.
    pub managed_by: Option<ManagedBy>,
    /// Hash of the secret.
    pub secret: SecretHash,
    pub created_at: Timestamp,
    /// Time of revocation; `None` while the key is valid.
    pub revoked_at: Option<Timestamp>,
}
