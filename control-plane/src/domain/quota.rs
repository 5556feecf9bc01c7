//! Quotas: how much a person, a service and an agent may have.

use std::time::Duration;

/// How long a deleted service counts for the quota of its owner. If it did not count, a person who creates and deletes services
/// could give feedback as any number of services, because the feedback of a deleted service remains.
pub const DELETED_SERVICE_COUNTS_FOR: Duration = Duration::from_hours(30 * 24);

/// How long a deleted agent counts for the quota of its owner. If it did not count, a person who registers and deletes agents could
/// fill the database with the rows that we keep of each deleted agent.
pub const DELETED_AGENT_COUNTS_FOR: Duration = Duration::from_hours(30 * 24);

/// Maximum number of webhooks that one service has, or that belong to the deployment itself. The maximum is small, because each
/// event may be delivered to all of them.
pub const WEBHOOKS_PER_SERVICE: u32 = 10;

/// Maximum number of services for which an agent has access tokens that are live, or have expired within the last hour. The
/// sidecars of all these services receive each change of the agent.
pub const AUDIENCES_PER_AGENT: u32 = 100;

/// Maximum number of services for which a session has had access tokens. The sidecars of all of them learn of its end.
pub const AUDIENCES_PER_SESSION: usize = 16;

const SECONDS_PER_DAY: u64 = 24 * 60 * 60;

/// The quotas that an operator can set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quotas {
    /// Maximum number of services that a person owns, or has deleted within [`DELETED_SERVICE_COUNTS_FOR`].
    pub services_per_person: u32,
    /// Maximum number of agents that a person has registered, or has deleted within [`DELETED_AGENT_COUNTS_FOR`].
    pub agents_per_person: u32,
    /// Maximum number of agents that were registered without the token of a human user. With 0, every registration needs a token.
    pub public_agents: u32,
    /// Maximum number of API keys of a service that are not revoked.
    pub keys_per_service: u32,
    /// Maximum number of live sessions of an agent. A login over the quota ends the oldest session.
    pub sessions_per_agent: u32,
}

/// A quota that a request would exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExceededQuota {
    ServicesPerPerson(u32),
    AgentsPerPerson(u32),
    PublicAgents(u32),
    KeysPerService(u32),
    /// See [`WEBHOOKS_PER_SERVICE`].
    WebhooksPerService,
    /// See [`AUDIENCES_PER_AGENT`].
    AudiencesPerAgent,
    /// See [`AUDIENCES_PER_SESSION`].
    AudiencesPerSession,
}

impl ExceededQuota {
    /// Returns the setting that raises the quota, if there is one, then the maximum, and a message that says what to do.
    pub fn describe(self) -> (Option<&'static str>, u32, String) {
        let reached = |limit: u32, what: &str, next: &str| format!("The maximum of {limit} {what} is reached: {next}");
        match self {
            Self::ServicesPerPerson(limit) => {
                let next = format!(
                    "transfer one to another user, or ask the operator to raise the quota; a deleted service counts for {} \
                     more days",
                    DELETED_SERVICE_COUNTS_FOR.as_secs() / SECONDS_PER_DAY
                );
                (Some("quotas.services_per_person"), limit, reached(limit, "services per person", &next))
            }
            Self::AgentsPerPerson(limit) => {
                let next = format!(
                    "ask the operator to raise the quota; a deleted agent counts for {} more days",
                    DELETED_AGENT_COUNTS_FOR.as_secs() / SECONDS_PER_DAY
                );
                (Some("quotas.agents_per_person"), limit, reached(limit, "agents per person", &next))
            }
            Self::PublicAgents(limit) => {
                let message = "No more agents can be registered without the token of a human user: log in first \
                               (`countersign login`), and send the token";
                (Some("registration.public_agents"), limit, message.to_owned())
            }
            Self::KeysPerService(limit) => {
                let message = reached(limit, "API keys per service", "revoke a key that is not used");
                (Some("quotas.keys_per_service"), limit, message)
            }
            Self::WebhooksPerService => {
                let limit = WEBHOOKS_PER_SERVICE;
                (None, limit, reached(limit, "webhooks per service", "delete or change one"))
            }
            Self::AudiencesPerAgent => {
                let limit = AUDIENCES_PER_AGENT;
                let message = format!(
                    "The agent has access tokens for {limit} services, the maximum: wait until an hour after those for one \
                     service have expired"
                );
                (None, limit, message)
            }
            Self::AudiencesPerSession => {
                let limit = u32::try_from(AUDIENCES_PER_SESSION).unwrap_or(u32::MAX);
                (None, limit, reached(limit, "services per session", "log in for the service instead of refreshing"))
            }
        }
    }
}
