//! `[registration]`: the registration of agents.

use super::quotas::MAX_QUOTA;
use serde::Deserialize;

/// `[registration]`
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct RegistrationSettings {
    /// How many agents may be registered without the token of a human user. 0: a registration needs a token.
    pub public_agents: u32,
}

impl RegistrationSettings {
    /// Describes the problem of these settings; `None` if they are valid.
    pub(super) fn problem(self) -> Option<String> {
        let Self { public_agents } = self;
        (public_agents > MAX_QUOTA)
            .then(|| format!("registration.public_agents: {public_agents} must be from 0 to {MAX_QUOTA}"))
    }
}
