//! `[quotas]`: how much persons, services and agents may have.

use serde::Deserialize;

/// Upper bound of a quota.
pub(super) const MAX_QUOTA: u32 = 1_000_000;

/// `[quotas]`
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct QuotaSettings {
    /// Services that a human user owns.
    pub services_per_person: u32,
    /// Agents that a human user has registered.
    pub agents_per_person: u32,
    /// API keys of a service that are not revoked.
    pub keys_per_service: u32,
    /// Live sessions of an agent.
    pub sessions_per_agent: u32,
}

impl QuotaSettings {
    /// A message for each quota that is not from 1 to [`MAX_QUOTA`].
    pub(super) fn problems(self) -> impl Iterator<Item = String> {
        let Self { services_per_person, agents_per_person, keys_per_service, sessions_per_agent } = self;
        let all = [
            ("services_per_person", services_per_person),
            ("agents_per_person", agents_per_person),
            ("keys_per_service", keys_per_service),
            ("sessions_per_agent", sessions_per_agent),
        ];
        let invalid = all.into_iter().filter(|(_, quota)| !(1..=MAX_QUOTA).contains(quota));
        invalid.map(|(name, quota)| format!("quotas.{name}: {quota} must be from 1 to {MAX_QUOTA}"))
    }
}
