//! `[registration]` and `[trust]`: the registration of agents, and the feedback about them.

use serde::Deserialize;
use std::time::Duration;

/// `[registration]`
#[derive(Debug, Clone, Deserialize)]
pub struct RegistrationSettings {
    /// Whether agents may register without the token of a human user.
    pub public: bool,
    public_unused_days: u16,
}

impl RegistrationSettings {
    /// Describes the problem of these settings; `None` if they are valid.
    pub(super) fn problem(&self) -> Option<&'static str> {
        (self.public_unused_days == 0).then_some("registration.public_unused_days: must be at least 1")
    }

    /// Time after which an agent of a public registration that never logged in is deleted.
    pub fn unused_retention(&self) -> Duration {
        days(self.public_unused_days)
    }
}

/// `[trust]`
#[derive(Debug, Clone, Deserialize)]
pub struct TrustSettings {
    feedback_days: u16,
}

impl TrustSettings {
    /// Describes the problem of these settings; `None` if they are valid.
    pub(super) fn problem(&self) -> Option<&'static str> {
        (self.feedback_days == 0).then_some("trust.feedback_days: must be at least 1")
    }

    /// How long feedback about agents is kept.
    pub fn feedback_retention(&self) -> Duration {
        days(self.feedback_days)
    }
}

fn days(number: u16) -> Duration {
    Duration::from_hours(24 * u64::from(number))
}
