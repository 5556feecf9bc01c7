//! Forget what no living token can depend on, and see whether the database answers.

use super::{Context, Denied};
use crate::{
    store::{Write, deliveries, feed, idempotency, outbox, sessions, webhook_targets},
    webhooks::QueueHealth,
};
use countersign_identity::{EventId, Timestamp};
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

/// Forgets events that are too old to be delivered, and what was on its way to targets that are deleted: bit by bit, so
/// that nobody waits for it.
pub async fn forget_events(context: &Context) -> Result<(), Denied> {
    let horizon = made_at(context.now().before(context.rules.events_life));
    let targets = webhook_targets::all(context.store.read().await?.conn()).await?;
    for (target, deleted) in targets {
        let before = (!deleted).then_some(horizon);
        let some = async |mut tx: Write| {
            let more = deliveries::forget(tx.conn(), target, before, AT_ONCE).await?;
            if deleted && !more {
                webhook_targets::remove(tx.conn(), target).await?;
            }
            Ok::<_, Denied>(tx.commit(more).await?)
        };
        while context.store.write("forget_deliveries", some).await? {}
    }
    let some = async |mut tx: Write| {
        let more = outbox::forget(tx.conn(), horizon, AT_ONCE).await?;
        Ok::<_, Denied>(tx.commit(more).await?)
    };
    while context.store.write("forget_events", some).await? {}
    Ok(())
}

/// The least of the ids that are made then: ids begin with their instant, in milliseconds.
fn made_at(at: Timestamp) -> EventId {
    EventId::from_bits(u128::try_from(at.micros() / 1000).unwrap_or(0) << 80)
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
