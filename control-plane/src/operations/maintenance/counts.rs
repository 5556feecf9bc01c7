//! Counts services and agents.

use crate::{
    domain::total::Total,
    operations::{Context, OperationError},
    store::{WriteTransaction, totals},
};
use std::time::Duration;

/// Returns the number of services and the number of active agents.
pub async fn count_services_and_active_agents(context: &Context) -> Result<(i64, i64), OperationError> {
    let mut read = context.store.read().await?;
    Ok((totals::find(read.conn(), Total::Services).await?, totals::find(read.conn(), Total::ActiveAgents).await?))
}

/// Time that counting may take, without a lock.
const MAX_COUNT_TIME: Duration = Duration::from_mins(30);

/// Counts all agents and services, and corrects the totals: a version of Countersign that did not keep them may have used the
/// database. Blocks no other transaction while it counts.
pub async fn correct_totals(context: &Context) -> Result<(), OperationError> {
    let found = &totals::find_differences(context.store.read_for(MAX_COUNT_TIME).await?.conn()).await?;
    if found.is_empty() {
        return Ok(());
    }
    tracing::info!(differences = ?found.differences, "correcting the totals of agents and services");
    let work = async |mut tx: WriteTransaction| {
        let corrected = totals::correct(tx.conn(), found).await?;
        Ok::<_, OperationError>(tx.commit(corrected).await?)
    };
    // If another replica corrects the totals at the same time, its correction is as good.
    context.store.write("correct_totals", work).await?;
    Ok(())
}
