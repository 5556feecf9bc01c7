//! Agents: registration, reading, listing, status and deletion.

mod delete;
mod list;
mod own;
mod read;
mod register;
mod status;

pub use delete::delete_agent;
pub(super) use delete::delete_locked_agents;
pub use list::{AgentFilter, AgentWithRoles, ManagedGrant, list_agents};
pub use own::{leave_service, list_own_agents, list_services_of_agent, readmit_service};
pub use read::read_agent;
pub use register::{RegistrationRequest, register_agent};
pub use status::set_agent_status;
