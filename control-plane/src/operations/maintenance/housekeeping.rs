//! Forget what no living token can depend on, and see whether the database answers.

use crate::{
    operations::{Context, OperationError, context::made_at},
    store::{Write, deliveries, feed, idempotency, outbox, sessions, webhook_targets},
    webhooks::QueueHealth,
};
use countersign_identity::EventId;
use std::time::Duration;

/// Beyond the longest life of a token, for clocks that run apart.
const MARGIN: Duration = Duration::from_mins(5);

/// Raises the floor past changes that are older than every living token, and forgets dead logins and requests that will not
/// come again.
pub async fn run_housekeeping(context: &Context) -> Result<(), OperationError> {
    let horizon = context.now().saturating_sub(context.rules.access_life + MARGIN);
    let work = async |mut tx: Write| {
        feed::raise_floor(tx.conn(), horizon).await?;
        sessions::delete_expired(tx.conn(), horizon).await?;
        let now = tx.now();
        idempotency::delete_expired(tx.conn(), now).await?;
        Ok::<_, OperationError>(tx.commit(()).await?)
    };
    context.store.write("run_housekeeping", work).await
}

/// Events that one transaction forgets.
const AT_ONCE: i64 = 1000;

/// Whoever began to write before a target was deleted has ended by then.
const UNDER_WAY: Duration = Duration::from_mins(1);

/// Forgets events that are too old to be delivered, what was on its way to targets that are deleted, and secrets of before:
/// bit by bit, so that nobody waits for it.
pub async fn delete_expired_events(context: &Context) -> Result<(), OperationError> {
    let horizon = EventId::from_bits(made_at(context.now().saturating_sub(context.rules.events_life)));
    let mut read = context.store.read().await?;
    let targets = webhook_targets::all(read.conn()).await?;
    drop(read);
    for (target, deleted) in targets {
        let before = (!deleted).then_some(horizon);
        if !deleted && !deliveries::any_before(context.store.read().await?.conn(), target, horizon).await? {
            continue;
        }
        let some = async |mut tx: Write| {
            webhook_targets::hold(tx.conn(), target).await?;
            let more = deliveries::forget(tx.conn(), target, before, AT_ONCE).await?;
            if deleted && !more {
                let before = tx.now().saturating_sub(UNDER_WAY);
                webhook_targets::remove(tx.conn(), target, before).await?;
            }
            Ok::<_, OperationError>(tx.commit(more).await?)
        };
        while context.store.write("forget_deliveries", some).await? {}
    }
    while outbox::any_before(context.store.read().await?.conn(), horizon).await? {
        let some = async |mut tx: Write| {
            outbox::forget(tx.conn(), horizon, AT_ONCE).await?;
            Ok::<_, OperationError>(tx.commit(()).await?)
        };
        context.store.write("delete_expired_events", some).await?;
    }
    let secrets = async |mut tx: Write| {
        let now = tx.now();
        webhook_targets::forget_secrets(tx.conn(), now).await?;
        Ok::<_, OperationError>(tx.commit(()).await?)
    };
    context.store.write("forget_secrets", secrets).await
}

/// How the delivery of events is.
pub fn probe_queue(context: &Context) -> QueueHealth {
    context.pulse.health()
}

/// How the database is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatabaseHealth {
    /// It answers, and the last write succeeded.
    Up,
    /// It answers, and the last write failed.
    ReadOnly,
    /// It does not answer in time.
    Down,
}

/// Asks the database for something that is always there.
pub async fn probe_database(context: &Context, patience: Duration) -> DatabaseHealth {
    let probe = async { feed::position(context.store.read().await?.conn()).await };
    match tokio::time::timeout(patience, probe).await {
        Ok(Ok(_)) if context.store.is_writable() => DatabaseHealth::Up,
        Ok(Ok(_)) => DatabaseHealth::ReadOnly,
        Ok(Err(_)) | Err(_) => DatabaseHealth::Down,
    }
}
