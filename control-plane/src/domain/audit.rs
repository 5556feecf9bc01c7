//! The audit log: management actions, the initiator of each, and the hash chain that each entry belongs to (see [`chain`]).
//!
//! An entry is written for a change to a service, key, role, role assignment, webhook or agent status. Refused requests and
//! no-ops are not audited. Uses of tokens are not audited, and feedback on agents has a history of its own.

pub mod chain;

use super::{agent::Owner, string_enum::string_enum};
use core::net::IpAddr;
use countersign_identity::{AgentId, ApiKeyId, Kid, RoleId, ServiceId, WebhookId};
use serde_json::Value;
use std::{collections::BTreeMap, fmt};

string_enum! {
    /// A management action that is audited.
    AuditAction {
        /// The chain starts at a service or deployment that is older than the audit log.
        AuditBegan = "audit.began";
        /// The database was restored from a backup. Changes between the backup and the restore are lost.
        DatabaseRestored = "database.restored";
        /// An agent was registered.
        AgentRegistered = "agent.registered";
        /// An agent was suspended, reactivated or revoked.
        AgentStatusChanged = "agent.status_changed";
        /// A service was created.
        ServiceCreated = "service.created";
        /// The name of a service changed, or whether it accepts unbound tokens.
        ServiceChanged = "service.changed";
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
        /// A signing key was revoked, and with it all tokens that it signed.
        SigningKeyRevoked = "signing_key.revoked";
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
        /// Events were scheduled for delivery to a webhook target once more.
        WebhookReplayed = "webhook.replayed";
        /// The control plane disabled a webhook target: it answered 410 Gone or failed for too long.
        WebhookDisabled = "webhook.disabled";
    }
}

/// The caller behind an action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Actor {
    /// A service, authenticated by one of its API keys.
    ServiceKey(ApiKeyId),
    /// A human user.
    Human(Owner),
    /// An unauthenticated caller: public registration.
    Public,
    /// The control plane itself.
    System,
}

/// The actor of an action and the origin of the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Initiator {
    /// The authenticated caller.
    pub actor: Actor,
    /// The request that caused the action.
    pub origin: Origin,
}

/// The origin of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Origin {
    /// IP address of the client.
    pub address: Option<IpAddr>,
    /// Its `X-Request-Id`.
    pub request: Option<String>,
}

impl Initiator {
    /// The control plane, without a request.
    pub const SYSTEM: Self = Self { actor: Actor::System, origin: Origin { address: None, request: None } };
}

impl Actor {
    /// Kind, issuer and id, in the stored form.
    pub fn parts(&self) -> (&'static str, Option<&str>, Option<String>) {
        match self {
            Self::ServiceKey(key) => ("service_key", None, Some(key.to_string())),
            Self::Human(Owner { issuer, subject }) => ("human", Some(issuer), Some(subject.clone())),
            Self::Public => ("public", None, None),
            Self::System => ("system", None, None),
        }
    }
}

/// Identifies the chain that an entry belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuditChain {
    /// The chain for actions that belong to no service.
    Deployment,
    /// The chain of a service.
    Service(ServiceId),
}

/// Stored name of the chain of the deployment.
const DEPLOYMENT: &str = "deployment";

impl fmt::Display for AuditChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deployment => f.write_str(DEPLOYMENT),
            Self::Service(service) => service.fmt(f),
        }
    }
}

/// The object of an action, if it is neither a service nor an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Object {
    /// A role.
    Role(RoleId),
    /// An API key.
    ServiceKey(ApiKeyId),
    /// A signing key.
    SigningKey(Kid),
    /// A webhook target.
    Webhook(WebhookId),
}

impl Object {
    /// Kind and id, in the stored form.
    pub fn parts(&self) -> (&'static str, String) {
        match self {
            Self::Role(role) => ("role", role.to_string()),
            Self::ServiceKey(key) => ("service_key", key.to_string()),
            Self::SigningKey(kid) => ("signing_key", kid.as_str().to_owned()),
            Self::Webhook(webhook) => ("webhook", webhook.to_string()),
        }
    }
}

/// Additional fields of an entry, by name. Must not contain secrets, nor free-form values that could contain one.
pub type Details = BTreeMap<&'static str, Value>;

/// An entry before it is appended to its chain.
#[derive(Debug, Clone)]
pub struct NewAuditEntry {
    /// The chain to append to.
    pub chain: AuditChain,
    /// The action performed.
    pub action: AuditAction,
    /// The agent affected.
    pub agent: Option<AgentId>,
    /// The object affected.
    pub object: Option<Object>,
    /// Additional fields.
    pub details: Details,
}

impl NewAuditEntry {
    /// An entry in the chain of a service.
    pub const fn for_service(service: ServiceId, action: AuditAction) -> Self {
        Self::new(AuditChain::Service(service), action)
    }

    /// An entry in the chain of the deployment.
    pub const fn for_deployment(action: AuditAction) -> Self {
        Self::new(AuditChain::Deployment, action)
    }

    /// An entry without agent, object and details.
    pub const fn new(chain: AuditChain, action: AuditAction) -> Self {
        Self { chain, action, agent: None, object: None, details: Details::new() }
    }

    /// Sets the agent affected.
    #[must_use]
    pub fn agent(self, agent: AgentId) -> Self {
        Self { agent: Some(agent), ..self }
    }

    /// Sets the object affected.
    #[must_use]
    pub fn object(self, object: Object) -> Self {
        Self { object: Some(object), ..self }
    }

    /// Adds a detail.
    #[must_use]
    pub fn detail(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.details.insert(name, value.into());
        self
    }

    /// Adds the old and the new value of a field, if they differ.
    #[must_use]
    pub fn changed(self, name: &'static str, from: impl Into<Value>, to: impl Into<Value>) -> Self {
        let (from, to) = (from.into(), to.into());
        if from == to { self } else { self.detail(name, serde_json::json!({ "from": from, "to": to })) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_omits_fields_with_equal_values() {
        let entry = NewAuditEntry::for_deployment(AuditAction::RoleChanged).changed("a", 1, 1).changed("b", 1, 2);
        assert_eq!(Value::from_iter(entry.details), serde_json::json!({ "b": { "from": 1, "to": 2 } }));
    }
}
