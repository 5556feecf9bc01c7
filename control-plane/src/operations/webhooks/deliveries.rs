//! Replays deliveries, and sends test events.

use super::change::lock_webhook;
use crate::{
    domain::{
        audit::{AuditAction, AuditedObject, Initiator, NewAuditEntry},
        webhook::{
            WebhookScope,
            delivery::DeliveryStatus,
            event::{Event, EventData, TestEvent},
        },
    },
    operations::{Context, NotFound, OperationError, batches::PAUSE, context::id_lower_bound},
    store::{
        WriteTransaction,
        deliveries::{self, ReplayedBatch},
        outbox,
    },
};
use countersign_identity::{EventId, Timestamp, WebhookId};
use std::time::Duration;

/// The deliveries to replay.
#[derive(Debug, Clone, Copy)]
pub enum ReplaySelection {
    /// The delivery of one event.
    One(EventId),
    /// All finished deliveries of events since a time (inclusive), optionally only deliveries with a given status.
    Since(Timestamp, Option<DeliveryStatus>),
}

/// Maximum number of deliveries in one transaction.
const BATCH_SIZE: i64 = 1000;

/// Maximum time by which the creation time in the id of an event can precede the time of the event.
const MAX_ID_AGE: Duration = Duration::from_mins(1);

/// Makes deliveries due again with a new series of attempts, and returns the number of deliveries. Uses a transaction per
/// batch, to keep transactions short, and pauses after each one, so that other requests get at least half of the time of SQLite's
/// only writer.
pub async fn replay_deliveries(
    context: &Context,
    initiator: &Initiator,
    scope: WebhookScope,
    webhook: WebhookId,
    replay: ReplaySelection,
) -> Result<u64, OperationError> {
    let entry = NewAuditEntry::new(scope.chain(), AuditAction::WebhookReplayed).object(AuditedObject::Webhook(webhook));
    let entry = &match replay {
        ReplaySelection::One(event) => entry.with_detail("event", event.to_string()),
        ReplaySelection::Since(since, _) => entry.with_detail("since", since.seconds()),
    };
    let (mut total, mut after) = (0, None);
    loop {
        let is_first = total == 0;
        let work = async |mut tx: WriteTransaction| {
            lock_webhook(&mut tx, initiator, scope, webhook).await?;
            let batch = replay_batch(&mut tx, webhook, replay, after).await?;
            if is_first && batch.replayed > 0 {
                tx.audit(initiator, entry).await?;
            }
            Ok::<_, OperationError>(tx.commit(batch).await?)
        };
        let batch = context.store.write_alone("replay_deliveries", work).await?;
        context.dispatcher_wakeup.notify_one();
        total += batch.replayed;
        if batch.next.is_none() {
            return Ok(total);
        }
        after = batch.next;
        tokio::time::sleep(PAUSE).await;
    }
}

async fn replay_batch(
    tx: &mut WriteTransaction,
    webhook: WebhookId,
    replay: ReplaySelection,
    after: Option<EventId>,
) -> Result<ReplayedBatch, OperationError> {
    let now = tx.now();
    match replay {
        ReplaySelection::One(event) if deliveries::replay(tx.conn(), webhook, event, now).await? => {
            Ok(ReplayedBatch { replayed: 1, next: None })
        }
        ReplaySelection::One(_) => Err(OperationError::NotFound(NotFound::Delivery)),
        ReplaySelection::Since(since, status) => {
            let oldest = || EventId::from_bits(id_lower_bound(since.saturating_sub(MAX_ID_AGE)));
            let after = after.unwrap_or_else(oldest);
            Ok(deliveries::replay_batch(tx.conn(), webhook, since, after, status, now, BATCH_SIZE).await?)
        }
    }
}

/// Sends a test event to a webhook, regardless of its filter and status. Returns the id of the event.
pub async fn send_test_event(
    context: &Context,
    initiator: &Initiator,
    scope: WebhookScope,
    webhook: WebhookId,
) -> Result<EventId, OperationError> {
    let id = context.new_id(EventId::from_bits);
    let data = EventData::Test(TestEvent { webhook_id: webhook, service_id: scope.service() });
    let work = async |mut tx: WriteTransaction| {
        lock_webhook(&mut tx, initiator, scope, webhook).await?;
        let now = tx.now();
        outbox::insert_test(tx.conn(), &Event { id, at: now, data: data.clone() }, webhook, now).await?;
        let entry =
            NewAuditEntry::new(scope.chain(), AuditAction::WebhookTested).object(AuditedObject::Webhook(webhook));
        tx.audit(initiator, &entry).await?;
        Ok::<_, OperationError>(tx.commit(id).await?)
    };
    let id = context.store.write("test_webhook", work).await?;
    context.dispatcher_wakeup.notify_one();
    Ok(id)
}
