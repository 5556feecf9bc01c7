//! Counts services and agents.

use crate::{
    operations::{Context, OperationError},
    store::{agents, services},
};

/// Returns the number of services and the number of active agents.
pub async fn count_services_and_active_agents(context: &Context) -> Result<(i64, i64), OperationError> {
    let mut read = context.store.read().await?;
    Ok((services::count(read.conn()).await?, agents::count_active(read.conn()).await?))
}
