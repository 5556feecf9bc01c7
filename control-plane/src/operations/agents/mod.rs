//! Agents: registration, reading, listing, status and deletion.

mod own;
mod read;
mod register;
mod status;

pub use own::{leave_service, readmit_service};
pub use read::{
    AgentFilter, AgentWithRoles, ManagedGrant, list_agents, list_own_agents, list_services_of_agent, read_agent,
};
pub use register::{RegistrationRequest, register_agent};
pub(super) use status::delete_locked_agents;
pub use status::{delete_agent, set_agent_status};
