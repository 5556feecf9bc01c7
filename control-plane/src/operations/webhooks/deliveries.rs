//! Reads and replays deliveries, and sends test events.

use super::targets::{lock_webhook, read_webhook, webhook_entry};
use crate::{
    domain::{
        audit::{AuditAction, Initiator},
        page::{ListPage, Page},
        service::ServiceOrDeployment,
        webhook::{
            delivery::{Delivery, DeliveryStatus},
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

#[derive(Debug, Clone, Copy)]
pub enum ReplaySelection {
    /// The delivery of one event.
    One(EventId),
    /// All finished deliveries of events since a time (inclusive). With a status, only deliveries with this status.
    Since(Timestamp, Option<DeliveryStatus>),
}

/// Maximum number of deliveries in one transaction.
const BATCH_SIZE: i64 = 1000;

/// The id of an event contains the time when the id was made. The event itself happens at most this much later.
const MAX_ID_AGE: Duration = Duration::from_mins(1);

/// Makes deliveries due again with a new series of attempts, and returns their number. Each batch is a short transaction, and we pause
/// after it, so that other requests get their turn at SQLite's only writer. The first batch that replays anything is audited.
pub async fn replay_deliveries(
    context: &Context,
    initiator: &Initiator,
    scope: ServiceOrDeployment,
    webhook: WebhookId,
    replay: ReplaySelection,
) -> Result<u64, OperationError> {
    let entry = webhook_entry(scope, AuditAction::WebhookReplayed, webhook);
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
        ReplaySelection::One(_) => Err(NotFound::Delivery.into()),
        ReplaySelection::Since(since, status) => {
            let oldest = || EventId::from_bits(id_lower_bound(since.saturating_sub(MAX_ID_AGE)));
            let after = after.unwrap_or_else(oldest);
            Ok(deliveries::replay_batch(tx.conn(), webhook, since, after, status, now, BATCH_SIZE).await?)
        }
    }
}

/// Lists the deliveries of a webhook, newest event first.
pub async fn list_deliveries(
    context: &Context,
    scope: ServiceOrDeployment,
    webhook: WebhookId,
    status: Option<DeliveryStatus>,
    page: Page<EventId>,
) -> Result<ListPage<Delivery, EventId>, OperationError> {
    read_webhook(context, scope, webhook).await?;
    Ok(deliveries::list(context.store.read().await?.conn(), webhook, status, page).await?)
}

/// Reads a delivery, and the body exactly as the webhook receives it.
pub async fn read_delivery(
    context: &Context,
    scope: ServiceOrDeployment,
    webhook: WebhookId,
    event: EventId,
) -> Result<(Delivery, String), OperationError> {
    read_webhook(context, scope, webhook).await?;
    let mut read = context.store.read().await?;
    let delivery = deliveries::find(read.conn(), webhook, event).await?.ok_or(NotFound::Delivery)?;
    let body = outbox::find_event_body(read.conn(), event).await?.ok_or(NotFound::Delivery)?;
    Ok((delivery, body))
}

/// Sends a test event to a webhook, regardless of its filter and status. Returns the id of the event.
pub async fn send_test_event(
    context: &Context,
    initiator: &Initiator,
    scope: ServiceOrDeployment,
    webhook: WebhookId,
) -> Result<EventId, OperationError> {
    let id = context.new_id(EventId::from_bits);
    let data = EventData::Test(TestEvent { webhook_id: webhook, service_id: scope.service() });
    let work = async |mut tx: WriteTransaction| {
        lock_webhook(&mut tx, initiator, scope, webhook).await?;
        let now = tx.now();
        outbox::insert_test(tx.conn(), &Event { id, at: now, data: data.clone() }, webhook, now).await?;
        tx.audit(initiator, &webhook_entry(scope, AuditAction::WebhookTested, webhook)).await?;
        Ok::<_, OperationError>(tx.commit(id).await?)
    };
    let id = context.store.write("test_webhook", work).await?;
    context.dispatcher_wakeup.notify_one();
    Ok(id)
}
