//! `[connections]`, `[limits]`, `[quotas]` and `[registration]`: maximum numbers of connections, calls, objects and public agents.

use serde::Deserialize;
use std::{ops::RangeInclusive, time::Duration};

/// Upper bound of all numbers in this module: the rate limiter keeps the time of each call of the last minute in memory.
const MAX: u32 = 1_000_000;

/// Bounds of the idle timeout, in seconds.
const IDLE_SECONDS: RangeInclusive<u32> = 10..=3600;

/// Describes a number that is out of range; `None` if it is in range.
fn out_of_range(key: &str, value: u32, range: &RangeInclusive<u32>) -> Option<String> {
    (!range.contains(&value)).then(|| format!("{key}: {value} must be from {} to {}", range.start(), range.end()))
}

#[derive(Debug, Clone, Copy, Deserialize)]
pub struct ConnectionSettings {
    /// Maximum number of open connections, for the API port and for the sync port each.
    pub max: u32,
    idle_seconds: u32,
}

impl ConnectionSettings {
    /// How long a connection may wait for the next request.
    pub const fn idle_timeout(self) -> Duration {
        Duration::from_secs(self.idle_seconds as u64)
    }

    pub(super) fn problems(self) -> impl Iterator<Item = String> {
        let Self { max, idle_seconds } = self;
        let max = out_of_range("connections.max", max, &(1..=MAX));
        max.into_iter().chain(out_of_range("connections.idle_seconds", idle_seconds, &IDLE_SECONDS))
    }
}

/// `[limits]`, in calls per minute.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct LimitSettings {
    /// Calls under `/auth` from one address for one agent.
    #[serde(rename = "auth_per_minute")]
    pub auth: u32,
    /// Calls under `/auth` from one address, and requests with missing or wrong credentials from one address.
    #[serde(rename = "address_per_minute")]
    pub address: u32,
    /// Verifications by one service.
    #[serde(rename = "verification_per_minute")]
    pub verification: u32,
    /// Management calls by one service or human user.
    #[serde(rename = "management_per_minute")]
    pub management: u32,
    /// Feedback by one service.
    #[serde(rename = "feedback_per_minute")]
    pub feedback: u32,
}

impl LimitSettings {
    pub(super) fn problems(self) -> impl Iterator<Item = String> {
        let Self { auth, address, verification, management, feedback } = self;
        let all = [
            ("auth", auth),
            ("address", address),
            ("verification", verification),
            ("management", management),
            ("feedback", feedback),
        ];
        let problems = all.map(|(name, limit)| out_of_range(&format!("limits.{name}_per_minute"), limit, &(1..=MAX)));
        problems.into_iter().flatten().map(|problem| format!("{problem} calls; 0 would reject every call"))
    }
}

/// `[quotas]`: maximum numbers.
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
    pub(super) fn problems(self) -> impl Iterator<Item = String> {
        let Self { services_per_person, agents_per_person, keys_per_service, sessions_per_agent } = self;
        let all = [
            ("services_per_person", services_per_person),
            ("agents_per_person", agents_per_person),
            ("keys_per_service", keys_per_service),
            ("sessions_per_agent", sessions_per_agent),
        ];
        all.into_iter().filter_map(|(name, quota)| out_of_range(&format!("quotas.{name}"), quota, &(1..=MAX)))
    }
}

#[derive(Debug, Clone, Copy, Deserialize)]
pub struct RegistrationSettings {
    /// How many agents may be registered without the token of a human user. 0: each registration needs such a token.
    pub public_agents: u32,
}

impl RegistrationSettings {
    /// Describes the problem of these settings; `None` if they are valid.
    pub(super) fn problem(self) -> Option<String> {
        let Self { public_agents } = self;
        out_of_range("registration.public_agents", public_agents, &(0..=MAX))
    }
}
