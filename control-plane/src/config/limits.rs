//! `[limits]`: the rate limits.

use serde::Deserialize;

/// Upper bound of a rate limit. The rate limiter stores the time of each call of the last minute in memory.
const MAX_PER_MINUTE: u32 = 1_000_000;

/// `[limits]`, in calls per minute.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct LimitSettings {
    /// Calls under `/auth` from one address for one agent.
    #[serde(rename = "auth_per_minute")]
    pub auth: u32,
    /// Calls under `/auth` from one address.
    #[serde(rename = "auth_address_per_minute")]
    pub auth_address: u32,
    /// Verifications by one service.
    #[serde(rename = "verification_per_minute")]
    pub verification: u32,
    /// Management calls by one service or human user.
    #[serde(rename = "management_per_minute")]
    pub management: u32,
    /// Feedback by one service.
    #[serde(rename = "feedback_per_minute")]
    pub feedback: u32,
    /// Requests with missing or wrong credentials from one address.
    #[serde(rename = "failures_per_minute")]
    pub failures: u32,
    /// Logins and refreshes of one agent.
    #[serde(rename = "agent_per_minute")]
    pub agent: u32,
    /// Verifications by all services of one owner.
    #[serde(rename = "verification_owner_per_minute")]
    pub verification_owner: u32,
    /// Management calls with the API keys of all services of one owner.
    #[serde(rename = "management_owner_per_minute")]
    pub management_owner: u32,
    /// Feedback by all services of one owner.
    #[serde(rename = "feedback_owner_per_minute")]
    pub feedback_owner: u32,
}

impl LimitSettings {
    /// A message for each limit that is not from 1 to [`MAX_PER_MINUTE`].
    pub(super) fn problems(self) -> impl Iterator<Item = String> {
        let Self {
            auth,
            auth_address,
            verification,
            management,
            feedback,
            failures,
            agent,
            verification_owner,
            management_owner,
            feedback_owner,
        } = self;
        let all = [
            ("auth", auth),
            ("auth_address", auth_address),
            ("verification", verification),
            ("management", management),
            ("feedback", feedback),
            ("failures", failures),
            ("agent", agent),
            ("verification_owner", verification_owner),
            ("management_owner", management_owner),
            ("feedback_owner", feedback_owner),
        ];
        let invalid = all.into_iter().filter(|(_, limit)| !(1..=MAX_PER_MINUTE).contains(limit));
        invalid.map(|(name, limit)| {
            format!(
                "limits.{name}_per_minute: {limit} must be from 1 to {MAX_PER_MINUTE} calls; 0 would reject every call"
            )
        })
    }
}
