//! Deletes expired rows, and probes the database.

use crate::{
    domain::webhook::health::QueueHealth,
    operations::{Context, OperationError, context::id_lower_bound},
    store::{
        WriteTransaction, deliveries, feed, idempotency, known_agents, outbox, service_transfers, sessions,
        token_audiences, webhook_targets,
    },
};
use countersign_identity::EventId;
use std::time::Duration;

/// Added to the lifetime of tokens, to allow for clock skew between replicas.
const CLOCK_SKEW_MARGIN: Duration = Duration::from_mins(5);

/// Raises the revision floor (the oldest revision from which a sidecar can resume) past changes that are older than every live
/// token. Deletes expired sessions, stored responses, offers of services, and contacts that no longer count.
pub async fn run_housekeeping(context: &Context) -> Result<(), OperationError> {
    let horizon = context.now().saturating_sub(context.config.access_token_lifetime + CLOCK_SKEW_MARGIN);
    let raise_floor = async |mut tx: WriteTransaction| {
        feed::raise_floor(tx.conn(), horizon).await?;
        Ok::<_, OperationError>(tx.commit(()).await?)
    };
    context.store.write("raise_floor", raise_floor).await?;
    let delete_changes = async |mut tx: WriteTransaction| {
        let deleted = feed::delete_below_floor(tx.conn(), BATCH_SIZE).await?;
        Ok::<_, OperationError>(tx.commit(deleted > 0).await?)
    };
    while context.store.write("delete_changes", delete_changes).await? {}
    let work = async |mut tx: WriteTransaction| {
        sessions::delete_expired(tx.conn(), horizon).await?;
        let now = tx.now();
        idempotency::delete_expired(tx.conn(), now).await?;
        known_agents::delete_forgotten(tx.conn(), now).await?;
        token_audiences::delete_expired(tx.conn(), now).await?;
        service_transfers::delete_expired(tx.conn(), now).await?;
        Ok::<_, OperationError>(tx.commit(()).await?)
    };
    context.store.write("run_housekeeping", work).await
}

/// Maximum number of rows that one transaction deletes.
const BATCH_SIZE: i64 = 1000;

/// Upper bound of the duration of a transaction. One minute after the deletion of a webhook target, no transaction can still
/// insert deliveries to the target. The same holds for rows of a deleted service or agent.
pub(super) const MAX_TRANSACTION_TIME: Duration = Duration::from_mins(1);

/// Deletes events older than the retention time, deliveries to deleted targets, and expired webhook secrets. Uses small
/// transactions, so that other writers do not wait.
pub async fn delete_expired_events(context: &Context) -> Result<(), OperationError> {
    let horizon = EventId::from_bits(id_lower_bound(context.now().saturating_sub(context.config.event_retention)));
    let mut read = context.store.read().await?;
    let targets = webhook_targets::list_all(read.conn()).await?;
    drop(read);
    for (target, deleted) in targets {
        let before = (!deleted).then_some(horizon);
        if !deleted && !deliveries::has_deliveries_before(context.store.read().await?.conn(), target, horizon).await? {
            continue;
        }
        let batch = async |mut tx: WriteTransaction| {
            webhook_targets::lock_any_scope(tx.conn(), target).await?;
            let has_more = deliveries::delete_before(tx.conn(), target, before, BATCH_SIZE).await?;
            if deleted && !has_more {
                let before = tx.now().saturating_sub(MAX_TRANSACTION_TIME);
                webhook_targets::delete_row(tx.conn(), target, before).await?;
            }
            Ok::<_, OperationError>(tx.commit(has_more).await?)
        };
        while context.store.write("delete_deliveries", batch).await? {}
    }
    while outbox::has_events_before(context.store.read().await?.conn(), horizon).await? {
        let batch = async |mut tx: WriteTransaction| {
            outbox::delete_events_before(tx.conn(), horizon, BATCH_SIZE).await?;
            Ok::<_, OperationError>(tx.commit(()).await?)
        };
        context.store.write("delete_expired_events", batch).await?;
    }
    let delete_secrets = async |mut tx: WriteTransaction| {
        let now = tx.now();
        webhook_targets::delete_expired_secrets(tx.conn(), now).await?;
        Ok::<_, OperationError>(tx.commit(()).await?)
    };
    context.store.write("delete_expired_secrets", delete_secrets).await
}

/// Returns the health of Countersign's webhook dispatcher.
pub fn probe_queue(context: &Context) -> QueueHealth {
    (context.queue_health)()
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
    let probe = async { feed::position(context.store.read().await?.conn()).await };
    match tokio::time::timeout(timeout, probe).await {
        Ok(Ok(_)) if context.store.is_writable() => DatabaseHealth::Up,
        Ok(Ok(_)) => DatabaseHealth::ReadOnly,
        Ok(Err(_)) | Err(_) => DatabaseHealth::Down,
    }
}
