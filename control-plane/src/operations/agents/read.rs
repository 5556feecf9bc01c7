//! Reads an agent.

use crate::{
    domain::{agent::Agent, caller::Caller},
    operations::{Context, NotFound, OperationError, require_manager},
    store::agents,
};
use countersign_identity::{AgentId, Reason, ServiceId};

/// Reads an agent. A caller who reads an agent must have an API key of the service with scope `full`, own the service, own
/// the agent, or be an administrator. A caller who may not read the agent gets the same error whether or not the agent
/// exists.
pub async fn read_agent(
    context: &Context,
    caller: &Caller,
    service: ServiceId,
    agent: AgentId,
) -> Result<Agent, OperationError> {
    let access = require_manager(context, caller, service).await;
    let agent = agents::find(context.store.read().await?.conn(), agent).await?;
    match (access, agent) {
        (Ok(()), agent) => agent.ok_or(OperationError::NotFound(NotFound::Agent)),
        (Err(OperationError::Refused(refusal)), Some(agent))
            if refusal.reason == Reason::NotYours && is_agent_owner(caller, &agent) =>
        {
            Ok(agent)
        }
        (Err(error), _) => Err(error),
    }
}

fn is_agent_owner(caller: &Caller, agent: &Agent) -> bool {
    match caller {
        Caller::Human(human) => agent.registration.owner.as_ref() == Some(&human.identity),
        Caller::Service(_) => false,
    }
}
