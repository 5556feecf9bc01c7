//! What is counted for the whole Countersign deployment.

use super::string_enum::string_enum;

string_enum! {
    /// What a total counts. The name is that in the database.
    Total {
        /// Agents with the status `active`.
        ActiveAgents = "active_agents";
        /// Agents that were registered without the token of a human user.
        PublicAgents = "public_agents";
        /// Services.
        Services = "services";
    }
}
