//! Acts of management: who did what, to whom, from where. A record is a link of a chain, see [`chain`].
//!
//! What agents do with their tokens is no act of management, and what services say of agents has a history of
//! its own. An attempt that was refused or changed nothing is no act.

pub mod chain;

use super::{agent::Owner, named::named};
use core::net::IpAddr;
use countersign_identity::{AgentId, ApiKeyId, Kid, RoleId, ServiceId, WebhookId};
use serde_json::Value;
use std::{collections::BTreeMap, fmt};

named! {
    /// What was done.
    Act {
        /// The chain begins at a service or deployment that was there before.
        AuditBegan = "audit.began";
        /// The database was restored from a backup: what happened between that and now is not in it.
        DatabaseRestored = "database.restored";
        /// An agent was registered.
        AgentRegistered = "agent.registered";
        /// An agent was suspended, reactivated or revoked.
        AgentStatusChanged = "agent.status_changed";
        /// A service was made.
        ServiceCreated = "service.created";
        /// A service's name changed, or which tokens it accepts.
        ServiceChanged = "service.changed";
        /// An API key was made.
        ServiceKeyCreated = "service_key.created";
        /// An API key was revoked.
        ServiceKeyRevoked = "service_key.revoked";
        /// A role was defined.
        RoleCreated = "role.created";
        /// A role's permissions or description changed.
        RoleChanged = "role.changed";
        /// A role was deleted, with all its assignments.
        RoleDeleted = "role.deleted";
        /// A role was given to an agent, or ends at another time.
        RoleAssigned = "role.assigned";
        /// A role was taken from an agent.
        RoleRevoked = "role.revoked";
        /// Another signing key signs, or will.
        SigningKeyRotated = "signing_key.rotated";
        /// A signing key was revoked, with all tokens under it.
        SigningKeyRevoked = "signing_key.revoked";
        /// A target of events was made.
        WebhookCreated = "webhook.created";
        /// A target was changed, paused or resumed.
        WebhookChanged = "webhook.changed";
        /// A target was deleted, with what was on its way to it.
        WebhookDeleted = "webhook.deleted";
        /// A target got a new secret.
        WebhookSecretRotated = "webhook.secret_rotated";
        /// A target was sent a test.
        WebhookTested = "webhook.tested";
        /// Events are delivered to a target once more.
        WebhookReplayed = "webhook.replayed";
        /// A target wants no more, or has failed for too long.
        WebhookDisabled = "webhook.disabled";
    }
}

/// Who acted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Actor {
    /// A service, by one of its API keys.
    ServiceKey(ApiKeyId),
    /// A person.
    Human(Owner),
    /// Nobody we know: public registration.
    Public,
    /// The control plane by itself.
    System,
}

/// Who acted, and from where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Author {
    /// Who.
    pub actor: Actor,
    /// From which request.
    pub origin: Origin,
}

/// Where a request came from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Origin {
    /// The address of the client.
    pub address: Option<IpAddr>,
    /// The id of the request.
    pub request: Option<String>,
}

impl Author {
    /// The control plane, of its own accord.
    pub const SYSTEM: Self = Self { actor: Actor::System, origin: Origin { address: None, request: None } };
}

impl Actor {
    /// Kind, issuer and id, as they are kept.
    pub fn parts(&self) -> (&'static str, Option<&str>, Option<String>) {
        match self {
            Self::ServiceKey(key) => ("service_key", None, Some(key.to_string())),
            Self::Human(Owner { issuer, subject }) => ("human", Some(issuer), Some(subject.clone())),
            Self::Public => ("public", None, None),
            Self::System => ("system", None, None),
        }
    }
}

/// The chain that an act belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chain {
    /// Of what concerns no service.
    Deployment,
    /// Of a service.
    Service(ServiceId),
}

/// What the chain of the deployment is called.
const DEPLOYMENT: &str = "deployment";

impl fmt::Display for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deployment => f.write_str(DEPLOYMENT),
            Self::Service(service) => service.fmt(f),
        }
    }
}

/// What was made, changed or taken, beside service and agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Object {
    /// A role.
    Role(RoleId),
    /// An API key.
    ServiceKey(ApiKeyId),
    /// A signing key.
    SigningKey(Kid),
    /// A target of events.
    Webhook(WebhookId),
}

impl Object {
    /// Kind and id, as they are kept.
    pub fn parts(&self) -> (&'static str, String) {
        match self {
            Self::Role(role) => ("role", role.to_string()),
            Self::ServiceKey(key) => ("service_key", key.to_string()),
            Self::SigningKey(kid) => ("signing_key", kid.as_str().to_owned()),
            Self::Webhook(webhook) => ("webhook", webhook.to_string()),
        }
    }
}

/// More about an act, by name. Never a secret, and nothing free-form that might hold one.
pub type Details = BTreeMap<&'static str, Value>;

/// An act, as whoever does it says.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Where it belongs.
    pub chain: Chain,
    /// What was done.
    pub act: Act,
    /// To which agent.
    pub agent: Option<AgentId>,
    /// With what.
    pub object: Option<Object>,
    /// More about it.
    pub details: Details,
}

impl Entry {
    /// An act at a service.
    pub const fn at(service: ServiceId, act: Act) -> Self {
        Self::of(Chain::Service(service), act)
    }

    /// An act that concerns no service.
    pub const fn of_deployment(act: Act) -> Self {
        Self::of(Chain::Deployment, act)
    }

    /// An act, without more.
    pub const fn of(chain: Chain, act: Act) -> Self {
        Self { chain, act, agent: None, object: None, details: Details::new() }
    }

    /// Says to which agent.
    #[must_use]
    pub fn to(self, agent: AgentId) -> Self {
        Self { agent: Some(agent), ..self }
    }

    /// Says with what.
    #[must_use]
    pub fn with(self, object: Object) -> Self {
        Self { object: Some(object), ..self }
    }

    /// Adds a detail.
    #[must_use]
    pub fn saying(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.details.insert(name, value.into());
        self
    }

    /// Adds a detail that changed, if it did.
    #[must_use]
    pub fn changing(self, name: &'static str, from: impl Into<Value>, to: impl Into<Value>) -> Self {
        let (from, to) = (from.into(), to.into());
        if from == to { self } else { self.saying(name, serde_json::json!({ "from": from, "to": to })) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stays_is_no_change() {
        let entry = Entry::of_deployment(Act::RoleChanged).changing("a", 1, 1).changing("b", 1, 2);
        assert_eq!(Value::from_iter(entry.details), serde_json::json!({ "b": { "from": 1, "to": 2 } }));
    }
}
