//! The audit log: entries that record management actions and their initiators, in hash chains (see [`chain`]).
//!
//! An entry is written for a change to a service, key, role, role assignment, webhook or agent status, and for work on the database
//! such as a restore. Refused requests, no-ops and uses of tokens are not audited. Feedback on agents has a separate history.

pub mod chain;
pub mod keys;

use super::{agent::Owner, caller::Human, service::ServiceOrDeployment, string_enum::string_enum, text::ManagedBy};
use core::net::IpAddr;
use countersign_identity::{AgentId, ApiKeyId, Kid, RoleId, ServiceId, WebhookId};
use serde_json::Value;
use std::collections::BTreeMap;

string_enum! {
    /// A management action that is audited.
    AuditAction {
        /// The audit log was started for a service or a Countersign deployment that already existed.
        AuditBegan = "audit.began";
        /// The database was restored from a backup. Changes between the backup and the restore are lost.
        DatabaseRestored = "database.restored";
        /// All sidecars now apply the changes that earlier entries of the chain record.
        ChangesEnforced = "changes.enforced";
        /// Entries of the audit log were archived, and are deleted from the database.
        AuditArchived = "audit.archived";
        /// An agent was registered.
        AgentRegistered = "agent.registered";
        /// An agent was suspended, reactivated or revoked.
        AgentStatusChanged = "agent.status_changed";
        /// An agent was deleted, which also revoked it.
        AgentDeleted = "agent.deleted";
        /// The owner of an agent left a service, which ended all roles of the agent there.
        AgentLeft = "agent.left";
        /// The owner of an agent allowed a service that was left to assign roles again.
        ServiceReadmitted = "agent.service_readmitted";
        /// A service was created.
        ServiceCreated = "service.created";
        /// The name, resource URIs or `managedBy` of a service changed, or whether it accepts tokens bound to no service.
        ServiceChanged = "service.changed";
        /// The owner of a service offered it to another person.
        ServiceTransferOffered = "service.transfer_offered";
        /// The owner withdrew the offer of a service, or the receiver declined it.
        ServiceTransferWithdrawn = "service.transfer_withdrawn";
        /// The receiver accepted the offer of a service and became its owner.
        ServiceTransferred = "service.transferred";
        /// A service was deleted. This is the last entry of its chain.
        ServiceDeleted = "service.deleted";
        /// An API key was created.
        ServiceKeyCreated = "service_key.created";
        /// An API key was revoked.
        ServiceKeyRevoked = "service_key.revoked";
        /// A role was created.
        RoleCreated = "role.created";
        /// The permissions or the description of a role changed.
        RoleChanged = "role.changed";
        /// A role was deleted, with all its assignments.
        RoleDeleted = "role.deleted";
        /// A role was assigned to an agent, or the expiry of an assignment changed.
        RoleAssigned = "role.assigned";
        /// The assignment of a role to an agent was removed.
        RoleRevoked = "role.revoked";
        /// A rotation to another signing key took effect or was scheduled.
        SigningKeyRotated = "signing_key.rotated";
        /// A signing key was revoked, which invalidates all tokens that it signed.
        SigningKeyRevoked = "signing_key.revoked";
        /// Another master key became current.
        MasterKeyRotated = "master_key.rotated";
        /// A webhook target was created.
        WebhookCreated = "webhook.created";
        /// A webhook target was changed, paused or resumed.
        WebhookChanged = "webhook.changed";
        /// A webhook target was deleted, with its pending deliveries.
        WebhookDeleted = "webhook.deleted";
        /// The secret of a webhook target was replaced.
        WebhookSecretRotated = "webhook.secret_rotated";
        /// A test event was sent to a webhook target.
        WebhookTested = "webhook.tested";
        /// Deliveries to a webhook target were replayed.
        WebhookReplayed = "webhook.replayed";
        /// The control plane disabled a webhook target because the receiver returned 410 Gone or failed for too long.
        WebhookDisabled = "webhook.disabled";
    }
}

/// The caller who performed an action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Actor {
    /// A service, authenticated by one of its API keys.
    ServiceKey(ApiKeyId),
    Human(Human),
    /// An unauthenticated caller of the public registration.
    Public,
    /// The control plane itself.
    System,
}

/// Who performed an action, and from which request it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Initiator {
    /// The authenticated caller.
    pub actor: Actor,
    /// The request that caused the action.
    pub origin: RequestOrigin,
}

/// The client address and the id of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestOrigin {
    /// IP address of the client.
    pub address: Option<IpAddr>,
    /// `X-Request-Id` of the request.
    pub request_id: Option<String>,
}

impl Initiator {
    /// The control plane itself, for actions that no request caused.
    pub const SYSTEM: Self = Self { actor: Actor::System, origin: RequestOrigin { address: None, request_id: None } };
}

impl Actor {
    /// Kind, issuer and id of the actor, as stored.
    pub fn kind_issuer_and_id(&self) -> (&'static str, Option<&str>, Option<String>) {
        match self {
            Self::ServiceKey(key) => ("service_key", None, Some(key.to_string())),
            Self::Human(Human { identity: Owner { issuer, subject }, is_admin: _ }) => {
                ("human", Some(issuer), Some(subject.clone()))
            }
            Self::Public => ("public", None, None),
            Self::System => ("system", None, None),
        }
    }
}

/// The object of an action. `AuditedObject` has no variants for services and agents, because an audit entry has separate
/// fields for services and agents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuditedObject {
    Role(RoleId),
    ServiceKey(ApiKeyId),
    SigningKey(Kid),
    Webhook(WebhookId),
}

impl AuditedObject {
    /// Kind and id of the object, as stored.
    pub fn kind_and_id(&self) -> (&'static str, String) {
        match self {
            Self::Role(role) => ("role", role.to_string()),
            Self::ServiceKey(key) => ("service_key", key.to_string()),
            Self::SigningKey(kid) => ("signing_key", kid.as_str().to_owned()),
            Self::Webhook(webhook) => ("webhook", webhook.to_string()),
        }
    }
}

/// Additional fields of an entry, by name. They must not contain secrets, or free-form values that could contain secrets.
pub type AuditDetails = BTreeMap<&'static str, Value>;

/// An entry before it is appended to its chain.
#[derive(Debug, Clone)]
pub struct NewAuditEntry {
    /// The service or deployment to whose chain the entry is appended.
    pub chain: ServiceOrDeployment,
    /// The action performed.
    pub action: AuditAction,
    /// The agent affected.
    pub agent: Option<AgentId>,
    /// The object affected.
    pub object: Option<AuditedObject>,
    /// Additional fields.
    pub details: AuditDetails,
}

impl NewAuditEntry {
    /// An entry in the chain of a service.
    pub const fn for_service(service: ServiceId, action: AuditAction) -> Self {
        Self::new(ServiceOrDeployment::Service(service), action)
    }

    /// An entry in the chain of the whole Countersign deployment.
    pub const fn for_deployment(action: AuditAction) -> Self {
        Self::new(ServiceOrDeployment::Deployment, action)
    }

    /// An entry without agent, object and details.
    pub const fn new(chain: ServiceOrDeployment, action: AuditAction) -> Self {
        Self { chain, action, agent: None, object: None, details: AuditDetails::new() }
    }

    /// Sets the agent affected.
    #[must_use]
    pub fn agent(self, agent: AgentId) -> Self {
        Self { agent: Some(agent), ..self }
    }

    /// Sets the object affected.
    #[must_use]
    pub fn object(self, object: AuditedObject) -> Self {
        Self { object: Some(object), ..self }
    }

    /// Adds a field to the details of the entry.
    #[must_use]
    pub fn with_detail(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.details.insert(name, value.into());
        self
    }

    /// Adds the old and the new value of a field, if they differ.
    #[must_use]
    pub fn detail_if_changed(self, name: &'static str, from: impl Into<Value>, to: impl Into<Value>) -> Self {
        let (from, to) = (from.into(), to.into());
        if from == to { self } else { self.with_detail(name, serde_json::json!({ "from": from, "to": to })) }
    }

    /// Adds the old and the new `managedBy` of the object, if they differ.
    #[must_use]
    pub fn managed_by_if_changed(self, from: Option<&ManagedBy>, to: Option<&ManagedBy>) -> Self {
        self.detail_if_changed("managedBy", from.map(ManagedBy::as_str), to.map(ManagedBy::as_str))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detail_if_changed_omits_fields_with_equal_values() {
        let entry = NewAuditEntry::for_deployment(AuditAction::RoleChanged)
            .detail_if_changed("a", 1, 1)
            .detail_if_changed("b", 1, 2);
        assert_eq!(Value::from_iter(entry.details), serde_json::json!({ "b": { "from": 1, "to": 2 } }));
    }
}
