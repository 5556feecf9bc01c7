//! How many requests pass.

use serde::Deserialize;

/// The instants of all calls of a minute are kept, so there is an end to how many they may be.
const MOST_PER_MINUTE: u32 = 1_000_000;

/// `[limits]`, in calls per minute.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct LimitSettings {
    /// Under `/auth`, from one address for one agent.
    #[serde(rename = "auth_per_minute")]
    pub auth: u32,
    /// Under `/auth`, from one address.
    #[serde(rename = "auth_address_per_minute")]
    pub auth_address: u32,
    /// Verifications by one service.
    #[serde(rename = "verification_per_minute")]
    pub verification: u32,
    /// Management by one service or person.
    #[serde(rename = "management_per_minute")]
    pub management: u32,
    /// Feedback by one service.
    #[serde(rename = "feedback_per_minute")]
    pub feedback: u32,
    /// Missing and wrong credentials from one address.
    #[serde(rename = "failures_per_minute")]
    pub failures: u32,
}

impl LimitSettings {
    /// Whether somebody is let in, and the windows fit into memory.
    pub(super) fn are_sensible(self) -> bool {
        let Self { auth, auth_address, verification, management, feedback, failures } = self;
        let all = [auth, auth_address, verification, management, feedback, failures];
        all.iter().all(|limit| (1..=MOST_PER_MINUTE).contains(limit))
    }
}
