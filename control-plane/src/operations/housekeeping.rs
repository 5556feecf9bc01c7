//! Forget what no living token can depend on, and see whether the database answers.

use super::{Context, Denied, context::made_at};
use crate::{
    domain::webhook::health::QueueHealth,
    store::{Write, deliveries, feed, idempotency, outbox, sessions, webhook_targets},
};
use countersign_identity::EventId;
use std::time::Duration;

/// Beyond the longest life of a token, for clocks that run apart.
const MARGIN: Duration = Duration::from_mins(5);

/// Raises the floor past changes that are older than every living token, and forgets dead logins and requests that will not
/// come again.
pub async fn housekeep(context: &Context) -> Result<(), Denied> {
    let horizon = context.now().before(context.rules.access_life + MARGIN);
    let work = async |mut tx: Write| {
        feed::raise_floor(tx.conn(), horizon).await?;
        sessions::forget_before(tx.conn(), horizon).await?;
        let now = tx.now();
        idempotency::forget(tx.conn(), now).await?;
        Ok::<_, Denied>(tx.commit(()).await?)
    };
    context.store.write("housekeep", work).await
}

/// Events that one transaction forgets.
const AT_ONCE: i64 = 1000;

/// Whoever began to write before a target was deleted has ended by then.
const UNDER_WAY: Duration = Duration::from_mins(1);

/// Forgets events that are too old to be delivered, what was on its way to targets that are deleted, and secrets of before:
/// bit by bit, so that nobody waits for it.
pub async fn forget_events(context: &Context) -> Result<(), Denied> {
    let horizon = EventId::from_bits(made_at(context.now().before(context.rules.events_life)));
    let mut read = context.store.read().await?;
    let targets = webhook_targets::list_all(read.conn()).await?;
    drop(read);
    for (target, deleted) in targets {
        let before = (!deleted).then_some(horizon);
        if !deleted && !deliveries::has_deliveries_before(context.store.read().await?.conn(), target, horizon).await? {
            continue;
        }
        let some = async |mut tx: Write| {
            webhook_targets::lock_any_scope(tx.conn(), target).await?;
            let more = deliveries::delete_before(tx.conn(), target, before, AT_ONCE).await?;
            if deleted && !more {
                let before = tx.now().before(UNDER_WAY);
                webhook_targets::delete_row(tx.conn(), target, before).await?;
            }
            Ok::<_, Denied>(tx.commit(more).await?)
        };
        while context.store.write("forget_deliveries", some).await? {}
    }
    while outbox::has_events_before(context.store.read().await?.conn(), horizon).await? {
        let some = async |mut tx: Write| {
            outbox::delete_events_before(tx.conn(), horizon, AT_ONCE).await?;
            Ok::<_, Denied>(tx.commit(()).await?)
        };
        context.store.write("forget_events", some).await?;
    }
    let secrets = async |mut tx: Write| {
        let now = tx.now();
        webhook_targets::delete_expired_secrets(tx.conn(), now).await?;
        Ok::<_, Denied>(tx.commit(()).await?)
    };
    context.store.write("forget_secrets", secrets).await
}

/// Health of webhook delivery.
pub fn probe_queue(context: &Context) -> QueueHealth {
    (context.queue_health)()
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
