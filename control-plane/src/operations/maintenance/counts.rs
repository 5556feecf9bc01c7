//! Counts services and agents.

use crate::{
    domain::total::Total,
    operations::{Context, OperationError},
    store::{Store, WriteTransaction, totals},
};

/// Returns the number of services and the number of active agents.
pub async fn count_services_and_active_agents(context: &Context) -> Result<(i64, i64), OperationError> {
    let mut read = context.store.read().await?;
    Ok((totals::find(read.conn(), Total::Services).await?, totals::find(read.conn(), Total::ActiveAgents).await?))
}

/// Counts all totals anew, because the previous version of Countersign does not keep them.
pub async fn recount_totals(store: &Store) -> Result<(), OperationError> {
    let work = async |mut tx: WriteTransaction| {
        totals::recount(tx.conn()).await?;
        Ok::<_, OperationError>(tx.commit(()).await?)
    };
    store.write("recount_totals", work).await
}
