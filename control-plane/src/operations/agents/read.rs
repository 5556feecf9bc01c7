//! Reads an agent.

use crate::{
    domain::agent::Agent,
    operations::{Context, NotFound, OperationError},
    store::agents,
};
use countersign_identity::AgentId;

/// Reads an agent.
pub async fn read_agent(context: &Context, agent: AgentId) -> Result<Agent, OperationError> {
    let found = agents::find(context.store.read().await?.conn(), agent).await?;
    found.ok_or(OperationError::NotFound(NotFound::Agent))
}
