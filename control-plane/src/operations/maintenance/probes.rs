//! Health probes, and the totals of services and agents.

use crate::{
    domain::{housekeeping::HousekeepingHealth, total::Total, webhook::health::QueueHealth},
    operations::{Context, OperationError},
    store::{StoreError, WriteTransaction, feed, totals},
};
use std::time::Duration;

/// Returns the health of Countersign's webhook dispatcher.
pub fn probe_dispatcher(context: &Context) -> QueueHealth {
    (context.queue_health)()
}

/// Whether the database uses a master key that this control plane does not have. Reads memory only.
pub fn lacks_current_master_key(context: &Context) -> bool {
    context.keyring.lacks_current_master_key()
}

/// Returns the health of housekeeping. Reads memory only.
pub fn probe_housekeeping(context: &Context) -> HousekeepingHealth {
    context.housekeeping.health(context.now(), context.since_boot())
}

/// Writes to the database. So we notice when it stops accepting writes, and when it accepts them again, even if nobody else writes.
pub async fn check_database_write(context: &Context) -> Result<(), OperationError> {
    let work = async |mut tx: WriteTransaction| {
        tx.check_write().await?;
        tx.commit(()).await
    };
    Ok(context.store.write("check_database_write", work).await?)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatabaseHealth {
    /// The database responds, and the last write succeeded.
    Up,
    /// The database responds, but the last write failed.
    ReadOnly,
    /// The database does not respond in time.
    Down,
}

/// Runs a small query and reports whether the database responds within `timeout`. Concurrent probes share one query.
pub async fn probe_database(context: &Context, timeout: Duration) -> DatabaseHealth {
    let probe = context.database_probe.run(async {
        feed::position(context.store.read().await?.conn()).await?;
        Ok::<_, StoreError>(())
    });
    match tokio::time::timeout(timeout, probe).await {
        Ok(Ok(())) if context.store.is_writable() => DatabaseHealth::Up,
        Ok(Ok(())) => DatabaseHealth::ReadOnly,
        Ok(Err(_)) | Err(_) => DatabaseHealth::Down,
    }
}

pub async fn count_services_and_active_agents(context: &Context) -> Result<(i64, i64), OperationError> {
    let mut read = context.store.read().await?;
    Ok((totals::find(read.conn(), Total::Services).await?, totals::find(read.conn(), Total::ActiveAgents).await?))
}

/// The longest time for counting. It may be long, because counting holds no lock.
const MAX_COUNT_TIME: Duration = Duration::from_mins(30);

/// Counts all agents and services, and corrects the totals. The totals can be wrong if somebody has changed rows by hand. Blocks no
/// other transaction while it counts.
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
    // If another replica corrects the totals first, this changes nothing: its correction is as good.
    context.store.write("correct_totals", work).await?;
    Ok(())
}
