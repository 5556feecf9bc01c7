//! Health probes.

use crate::{
    domain::{housekeeping::HousekeepingHealth, webhook::health::QueueHealth},
    operations::{Context, OperationError},
    store::{StoreError, WriteTransaction, feed},
};
use std::time::Duration;

/// Returns the health of Countersign's webhook dispatcher.
pub fn probe_queue(context: &Context) -> QueueHealth {
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

/// Writes to the database, so that a database that accepts no writes is noticed without other writes, and so that its recovery
/// is.
pub async fn check_database_write(context: &Context) -> Result<(), OperationError> {
    let work = async |mut tx: WriteTransaction| {
        tx.check_write().await?;
        tx.commit(()).await
    };
    Ok(context.store.write("check_database_write", work).await?)
}

/// Health of the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatabaseHealth {
    /// The database responds, and the last write succeeded.
    Up,
    /// The database responds, but the last write failed.
    ReadOnly,
    /// The database does not respond in time.
    Down,
}

/// Runs a small query and reports whether the database responds within `timeout`.
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
