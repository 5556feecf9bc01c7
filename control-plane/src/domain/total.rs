//! What is counted for the whole Countersign deployment.

/// What a total counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Total {
    /// Agents with the status `active`.
    ActiveAgents,
    /// Agents that were registered without the token of a human user.
    PublicAgents,
    /// Services.
    Services,
}

impl Total {
    /// All totals.
    pub const ALL: [Self; 3] = [Self::ActiveAgents, Self::PublicAgents, Self::Services];

    /// The name in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ActiveAgents => "active_agents",
            Self::PublicAgents => "public_agents",
            Self::Services => "services",
        }
    }
}
