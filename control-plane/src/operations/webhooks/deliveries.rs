//! Replays deliveries, and sends test events.

use super::change::lock_webhook;
use crate::{
    domain::{
        audit::{AuditAction, Initiator, NewAuditEntry, Object},
        webhook::{
            WebhookScope,
            delivery::DeliveryStatus,
            event::{Event, EventData, Test},
        },
    },
    operations::{Context, NotFound, OperationError, context::id_lower_bound},
    store::{Write, deliveries, outbox},
};
use countersign_identity::{EventId, Timestamp, WebhookId};
use std::time::Duration;

/// The deliveries to replay.
#[derive(Debug, Clone, Copy)]
pub enum Replay {
    /// The delivery of this event.
    One(EventId),
    /// Finished deliveries with this status, or with any, of events that happened at this time or later.
    Since(Timestamp, Option<DeliveryStatus>),
}

/// Maximum number of deliveries in one transaction.
const BATCH_SIZE: i64 = 1000;

/// How much older the id of an event can be than the event itself.
const MAX_ID_AGE: Duration = Duration::from_mins(1);

/// Makes deliveries due again with a new series of attempts. Returns their number. Works in batches, so that no transaction
/// is long. Replayed deliveries are pending, so the next batch does not find them again.
pub async fn replay_deliveries(
    context: &Context,
    by: &Initiator,
    scope: WebhookScope,
    webhook: WebhookId,
    replay: Replay,
) -> Result<u64, OperationError> {
    let entry = NewAuditEntry::new(scope.chain(), AuditAction::WebhookReplayed).object(Object::Webhook(webhook));
    let entry = &match replay {
        Replay::One(event) => entry.detail("event", event.to_string()),
        Replay::Since(since, _) => entry.detail("since", since.seconds()),
    };
    let mut total = 0;
    loop {
        let is_first = total == 0;
        let work = async |mut tx: Write| {
            lock_webhook(&mut tx, scope, webhook).await?;
            let count = replay_batch(&mut tx, webhook, replay).await?;
            if is_first && count > 0 {
                tx.audit(by, entry).await?;
            }
            Ok::<_, OperationError>(tx.commit(count).await?)
        };
        let count = context.store.write("replay_deliveries", work).await?;
        context.dispatcher_wakeup.notify_one();
        total += count;
        if count < BATCH_SIZE.unsigned_abs() {
            return Ok(total);
        }
    }
}

async fn replay_batch(tx: &mut Write, webhook: WebhookId, replay: Replay) -> Result<u64, OperationError> {
    let now = tx.now();
    match replay {
        Replay::One(event) if deliveries::replay(tx.conn(), webhook, event, now).await? => Ok(1),
        Replay::One(_) => Err(OperationError::NotFound(NotFound::Delivery)),
        Replay::Since(since, status) => {
            let oldest = EventId::from_bits(id_lower_bound(since.saturating_sub(MAX_ID_AGE)));
            Ok(deliveries::replay_batch(tx.conn(), webhook, (since, oldest), status, (now, BATCH_SIZE)).await?)
        }
    }
}

/// Sends a test event to a webhook, whatever its filter and status. Returns the id of the event.
pub async fn test_webhook(
    context: &Context,
    by: &Initiator,
    scope: WebhookScope,
    webhook: WebhookId,
) -> Result<EventId, OperationError> {
    let id = context.new_id(EventId::from_bits);
    let data = EventData::Test(Test { webhook_id: webhook, service_id: scope.service() });
    let work = async |mut tx: Write| {
        lock_webhook(&mut tx, scope, webhook).await?;
        let now = tx.now();
        outbox::insert_test(tx.conn(), &Event { id, at: now, data: data.clone() }, webhook, now).await?;
        let entry = NewAuditEntry::new(scope.chain(), AuditAction::WebhookTested).object(Object::Webhook(webhook));
        tx.audit(by, &entry).await?;
        Ok::<_, OperationError>(tx.commit(id).await?)
    };
    let id = context.store.write("test_webhook", work).await?;
    context.dispatcher_wakeup.notify_one();
    Ok(id)
}
