//! Count what is in the database.

use crate::{
    operations::{Context, OperationError},
    store::{agents, services},
};

/// How many services there are, and how many agents that are active.
pub async fn count_active_records(context: &Context) -> Result<(i64, i64), OperationError> {
    let mut read = context.store.read().await?;
    Ok((services::count(read.conn()).await?, agents::count_active(read.conn()).await?))
}
