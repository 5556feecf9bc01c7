//! `[quotas]`: how much persons, services and agents may have.

use serde::Deserialize;

/// Upper bound of a quota.
const MAX_QUOTA: u32 = 1_000_000;

/// `[quotas]`
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct QuotaSettings {
    /// Services that a human user owns.
    pub services_per_person: u32,
    /// Agents that a human user has registered.
    pub agents_per_person: u32,
    /// Agents that were registered without the token of a human user.
    pub public_agents: u32,
    /// API keys of a service that are not revoked.
    pub keys_per_service: u32,
    /// Webhooks of a service, and of the whole Countersign deployment.
    pub webhooks_per_service: u32,
    /// Live sessions of an agent.
    pub sessions_per_agent: u32,
    /// Services for which an agent has live access tokens.
    pub audiences_per_agent: u32,
}

impl QuotaSettings {
    /// Whether every quota is from 1 to [`MAX_QUOTA`].
    pub(super) fn are_valid(self) -> bool {
        let all = [
            self.services_per_person,
            self.agents_per_person,
            self.public_agents,
            self.keys_per_service,
            self.webhooks_per_service,
            self.sessions_per_agent,
            self.audiences_per_agent,
        ];
        all.iter().all(|quota| (1..=MAX_QUOTA).contains(quota))
    }
}
