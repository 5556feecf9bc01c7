//! Quotas: how much a person, a service and an agent may have.

use std::time::Duration;

/// Time for which a deleted service counts towards the quota of its owner. The feedback of a deleted service remains, so without
/// this limit a person who creates and deletes services could give feedback as any number of services.
pub const DELETED_SERVICE_COUNTS_FOR: Duration = Duration::from_hours(30 * 24);

/// The quotas of a deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quotas {
    /// Maximum number of services that a person owns, or has deleted within [`DELETED_SERVICE_COUNTS_FOR`].
    pub services_per_person: u32,
    /// Maximum number of agents that a person has registered.
    pub agents_per_person: u32,
    /// Maximum number of agents that were registered without the token of a human user.
    pub public_agents: u32,
    /// Maximum number of API keys of a service that are not revoked.
    pub keys_per_service: u32,
    /// Maximum number of webhooks of a service, and of the whole Countersign deployment.
    pub webhooks_per_service: u32,
    /// Maximum number of live sessions of an agent. A login over the quota ends the oldest session.
    pub sessions_per_agent: u32,
    /// Maximum number of services for which an agent has access tokens that have not expired.
    pub audiences_per_agent: u32,
}

/// A quota that a request would exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExceededQuota {
    /// See [`Quotas::services_per_person`].
    ServicesPerPerson(u32),
    /// See [`Quotas::agents_per_person`].
    AgentsPerPerson(u32),
    /// See [`Quotas::public_agents`].
    PublicAgents(u32),
    /// See [`Quotas::keys_per_service`].
    KeysPerService(u32),
    /// See [`Quotas::webhooks_per_service`].
    WebhooksPerService(u32),
    /// See [`Quotas::audiences_per_agent`].
    AudiencesPerAgent(u32),
}

impl ExceededQuota {
    /// Name of the setting, the maximum, and a message with the next step.
    pub fn describe(self) -> (&'static str, u32, String) {
        let (setting, limit, what, next) = match self {
            Self::ServicesPerPerson(limit) => {
                ("services_per_person", limit, "services per person", "ask the operator to raise the quota")
            }
            Self::AgentsPerPerson(limit) => {
                ("agents_per_person", limit, "agents per person", "ask the operator to raise the quota")
            }
            Self::PublicAgents(limit) => (
                "public_agents",
                limit,
                "agents that were registered without the token of a human user",
                "register with the token of a human user",
            ),
            Self::KeysPerService(limit) => {
                ("keys_per_service", limit, "API keys per service", "revoke a key that is not used")
            }
            Self::WebhooksPerService(limit) => ("webhooks_per_service", limit, "webhooks", "delete or change one"),
            Self::AudiencesPerAgent(limit) => (
                "audiences_per_agent",
                limit,
                "services for which an agent has access tokens that have not expired",
                "wait until one of these tokens expires",
            ),
        };
        (setting, limit, format!("the maximum of {limit} {what} is reached: {next}"))
    }
}
