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
    /// A message for each limit that is not from 1 to [`MAX_PER_MINUTE`].
    pub(super) fn problems(self) -> impl Iterator<Item = String> {
        let Self { auth, address, verification, management, feedback } = self;
        let all = [
            ("auth", auth),
            ("address", address),
            ("verification", verification),
            ("management", management),
            ("feedback", feedback),
        ];
        let invalid = all.into_iter().filter(|(_, limit)| !(1..=MAX_PER_MINUTE).contains(limit));
        invalid.map(|(name, limit)| {
            format!(
                "limits.{name}_per_minute: {limit} must be from 1 to {MAX_PER_MINUTE} calls; 0 would reject every call"
            )
        })
    }
}
