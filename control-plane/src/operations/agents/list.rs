//! Lists the agents that hold a role at a service.

pub use crate::store::assignments::ManagedGrant;
use crate::{
    domain::{
        agent::Agent,
        page::{ListPage, Page},
    },
    operations::{Context, NotFound, OperationError},
    store::{agents, assignments, roles},
};
use countersign_identity::{AgentId, AgentStatus, RoleId, RoleTable, ServiceId};
use std::collections::BTreeMap;

/// Filter for [`list_agents`].
#[derive(Debug, Clone, Copy, Default)]
pub struct AgentFilter {
    /// If set, only agents that hold the role.
    pub role: Option<RoleId>,
    /// If set, only agents with the status.
    pub status: Option<AgentStatus>,
}

/// An agent and its roles at a service.
#[derive(Debug)]
pub struct AgentWithRoles {
    /// The agent.
    pub agent: Agent,
    /// Roles that the agent holds at the service now.
    pub roles: Vec<ManagedGrant>,
}

/// Lists the agents that hold a role at the service, newest first, and returns the roles of the service.
pub async fn list_agents(
    context: &Context,
    service: ServiceId,
    filter: AgentFilter,
    page: Page<AgentId>,
) -> Result<(ListPage<AgentWithRoles, AgentId>, RoleTable), OperationError> {
    let now = context.now();
    let mut read = context.store.read().await?;
    if let Some(role) = filter.role {
        roles::find(read.conn(), service, role).await?.ok_or(OperationError::NotFound(NotFound::Role))?;
    }
    let filter = agents::RoleHolderFilter { service, role: filter.role, status: filter.status, now };
    let ListPage { items, total, next } = agents::list_role_holders(read.conn(), &filter, page).await?;
    let ids: Vec<_> = items.iter().map(|agent| agent.id).collect();
    let mut roles_by_agent = BTreeMap::<_, Vec<_>>::new();
    for (agent, grant) in assignments::list_active_grants_of_agents(read.conn(), service, &ids, now).await? {
        roles_by_agent.entry(agent).or_default().push(grant);
    }
    let add_roles =
        |agent: Agent| AgentWithRoles { roles: roles_by_agent.remove(&agent.id).unwrap_or_default(), agent };
    let items = items.into_iter().map(add_roles).collect();
    let table = roles::list(read.conn(), service).await?.into_iter().map(|role| role.definition).collect();
    Ok((ListPage { items, total, next }, table))
}
