//! Reads and lists agents.

pub use crate::store::assignments::ManagedGrant;
use crate::{
    domain::{
        agent::{Agent, ServiceOfAgent},
        caller::{Caller, Human},
        page::{ListPage, Page},
    },
    operations::{
        Context, NotFound, OperationError,
        find::{find_agent, find_role},
        require_manager,
    },
    store::{Conn, agents, assignments, departures, roles},
};
use countersign_identity::{AgentId, AgentStatus, Reason, RoleId, RoleTable, ServiceId};
use std::collections::BTreeMap;

/// Reads an agent. The caller must have an API key of the service with scope `full`, own the service, own the agent, or be an
/// administrator. Other callers get the same error whether or not the agent exists.
pub async fn read_agent(
    context: &Context,
    caller: &Caller,
    service: ServiceId,
    agent: AgentId,
) -> Result<Agent, OperationError> {
    let access = require_manager(context, caller, service).await;
    let is_owner = |agent: &Agent| match caller {
        Caller::Human(human) => agent.registration.owner.as_ref() == Some(&human.identity),
        Caller::Service(_) => false,
    };
    let found = agents::find(context.store.read().await?.conn(), agent).await?;
    match (access, found) {
        (Ok(()), found) => Ok(found.ok_or(NotFound::Agent)?),
        (Err(OperationError::Refused(refusal)), Some(found))
            if refusal.reason == Reason::NotYours && is_owner(&found) =>
        {
            Ok(found)
        }
        (Err(error), _) => Err(error),
    }
}

#[derive(Debug, Clone, Copy, Default)]
pub struct AgentFilter {
    /// If set, only agents that hold the role.
    pub role: Option<RoleId>,
    /// If set, only agents with the status.
    pub status: Option<AgentStatus>,
}

#[derive(Debug)]
pub struct AgentWithRoles {
    pub agent: Agent,
    /// Roles that the agent holds at the service now.
    pub roles: Vec<ManagedGrant>,
}

/// Lists the agents that hold a role at the service, newest first. Also returns the definitions of the service's roles.
pub async fn list_agents(
    context: &Context,
    service: ServiceId,
    filter: AgentFilter,
    page: Page<AgentId>,
) -> Result<(ListPage<AgentWithRoles, AgentId>, RoleTable), OperationError> {
    let now = context.now();
    let mut read = context.store.read().await?;
    if let Some(role) = filter.role {
        find_role(read.conn(), service, role).await?;
    }
    let holders = agents::RoleHolderFilter { service, role: filter.role, status: filter.status, now };
    let ListPage { items, total, next } = agents::list_role_holders(read.conn(), &holders, page).await?;
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

/// Lists the agents that the user has registered, newest first. Administrators also get only their own agents.
pub async fn list_own_agents(
    context: &Context,
    human: &Human,
    page: Page<AgentId>,
) -> Result<ListPage<Agent, AgentId>, OperationError> {
    Ok(agents::list_by_owner(context.store.read().await?.conn(), &human.identity, page).await?)
}

/// Lists the services at which an agent holds a role, and the services that its owner has left.
pub async fn list_services_of_agent(
    context: &Context,
    human: &Human,
    agent: AgentId,
    page: Page<ServiceId>,
) -> Result<ListPage<ServiceOfAgent, ServiceId>, OperationError> {
    let mut read = context.store.read().await?;
    require_owner_of_agent(read.conn(), human, agent).await?;
    Ok(departures::list_services(read.conn(), agent, context.now(), page).await?)
}

/// Requires the owner of the agent or an administrator.
pub(super) async fn require_owner_of_agent(
    conn: &mut Conn,
    human: &Human,
    agent: AgentId,
) -> Result<(), OperationError> {
    let agent = find_agent(conn, agent).await?;
    Ok(human.require_owner(agent.registration.owner.as_ref())?)
}
