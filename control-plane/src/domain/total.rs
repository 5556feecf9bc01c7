//! The numbers of agents and services in the whole Countersign deployment, which we keep instead of counting rows.

use super::string_enum::string_enum;

string_enum! {
    /// What a total counts. The database stores the total under this name.
    Total {
        /// Agents with the status `active`.
        ActiveAgents = "active_agents";
        /// Agents that were registered without the token of a human user.
        PublicAgents = "public_agents";
        /// Services.
        Services = "services";
    }
}
