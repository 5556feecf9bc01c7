//! Publishes changed trust scores to sidecars, in batches, because feedback can be frequent.

use crate::{
    domain::change::Change,
    operations::{Context, OperationError},
    store::{WriteTransaction, trust},
};

/// Appends a change to the change feed for every agent whose trust score changed since the last call of this function.
pub async fn publish_trust_changes(context: &Context) -> Result<(), OperationError> {
    if !trust::has_changed_agents(context.store.read().await?.conn()).await? {
        return Ok(());
    }
    let work = async |mut tx: WriteTransaction| {
        for agent in trust::take_changed_agents(tx.conn()).await? {
            tx.record_change(Change::Trust(agent));
        }
        Ok::<_, OperationError>(tx.commit(()).await?)
    };
    context.store.write("publish_trust_changes", work).await
}
