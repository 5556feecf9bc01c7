//! Publishes changed trust scores to sidecars, in batches, because feedback can be frequent.

use crate::{
    domain::change::Change,
    operations::{Context, OperationError},
    store::{WriteTransaction, trust},
};

/// Maximum number of agents of one transaction. Each agent causes one row for each audience of its live tokens.
const BATCH_SIZE: i64 = 20;

/// Appends a change to the change feed for every agent whose trust score changed since the last call of this function. The
/// order of ids ends the run, also if feedback about the first agents never stops.
pub async fn publish_trust_changes(context: &Context) -> Result<(), OperationError> {
    if !trust::has_changed_agents(context.store.read().await?.conn()).await? {
        return Ok(());
    }
    let mut last = None;
    loop {
        let work = async |mut tx: WriteTransaction| {
            let agents = trust::take_changed_agents(tx.conn(), last, BATCH_SIZE).await?;
            for agent in &agents {
                tx.record_change(Change::Trust(*agent));
            }
            Ok::<_, OperationError>(tx.commit(agents.last().copied()).await?)
        };
        last = context.store.write_alone("publish_trust_changes", work).await?;
        if last.is_none() {
            return Ok(());
        }
    }
}
