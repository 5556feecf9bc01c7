//! Reads an agent.

use crate::{
    domain::{agent::Agent, caller::Caller},
    operations::{Context, NotFound, OperationError, require_manager},
    store::agents,
};
use countersign_identity::{AgentId, Reason, ServiceId};

/// Reads an agent. Allowed for an API key of the service with scope `full`, the owner of the service, the owner of the agent,
/// and administrators. For all other callers the result is the same whether or not the agent exists.
pub async fn read_agent(
    context: &Context,
    caller: &Caller,
    service: ServiceId,
    agent: AgentId,
) -> Result<Agent, OperationError> {
    let access = require_manager(context, caller, service).await;
    let found = agents::find(context.store.read().await?.conn(), agent).await?;
    match (access, found) {
        (Ok(()), found) => found.ok_or(OperationError::NotFound(NotFound::Agent)),
        (Err(OperationError::Refused(refusal)), Some(agent))
            if refusal.reason == Reason::NotYours && is_owner(caller, &agent) =>
        {
            Ok(agent)
        }
        (Err(error), _) => Err(error),
    }
}

fn is_owner(caller: &Caller, agent: &Agent) -> bool {
    match caller {
        Caller::Human(human) => agent.registration.owner.as_ref() == Some(&human.owner),
        Caller::Service(_) => false,
    }
}
