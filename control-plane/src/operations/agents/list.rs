//! The agents of a service: whoever holds a role there now.

use crate::{
    domain::{
        agent::Agent,
        page::{Listed, Page},
    },
    operations::{Context, NotFound, OperationError},
    store::{agents, assignments, roles},
};
use countersign_identity::{AgentStatus, RoleGrant, RoleId, RoleTable, ServiceId};
use std::collections::BTreeMap;

/// Which of them.
#[derive(Debug, Clone, Copy, Default)]
pub struct AgentFilter {
    /// Who holds this role.
    pub role: Option<RoleId>,
    /// Who has this status.
    pub status: Option<AgentStatus>,
}

/// An agent and what it holds.
#[derive(Debug)]
pub struct Holder {
    /// The agent.
    pub agent: Agent,
    /// Its live roles at the service.
    pub held: Vec<RoleGrant>,
}

/// The agents that hold a role, newest first, and what the roles are.
pub async fn list_agents(
    context: &Context,
    service: ServiceId,
    filter: AgentFilter,
    page: Page,
) -> Result<(Listed<Holder>, RoleTable), OperationError> {
    let now = context.now();
    let mut read = context.store.read().await?;
    if let Some(role) = filter.role {
        roles::find(read.conn(), service, role).await?.ok_or(OperationError::NotFound(NotFound::Role))?;
    }
    let wanted = agents::RoleHolderFilter { service, role: filter.role, status: filter.status, now };
    let Listed { items, total } = agents::list_role_holders(read.conn(), &wanted, page).await?;
    let ids: Vec<_> = items.iter().map(|agent| agent.id).collect();
    let mut held = BTreeMap::<_, Vec<_>>::new();
    for (agent, grant) in assignments::active_grants_of(read.conn(), service, &ids, now).await? {
        held.entry(agent).or_default().push(grant);
    }
    let holder = |agent: Agent| Holder { held: held.remove(&agent.id).unwrap_or_default(), agent };
    let holders = items.into_iter().map(holder).collect();
    let table = roles::list(read.conn(), service).await?.into_iter().map(|role| role.definition).collect();
    Ok((Listed { items: holders, total }, table))
}
