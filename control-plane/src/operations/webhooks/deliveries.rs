//! Deliver once more; or send a test.

use super::change::locked;
use crate::{
    domain::{
        audit::{AuditAction, Initiator, NewAuditEntry, Object},
        webhook::{
            Place,
            delivery::DeliveryStatus,
            event::{Event, News, Test},
        },
    },
    operations::{Context, NotFound, OperationError, context::id_lower_bound},
    store::{Write, deliveries, outbox},
};
use countersign_identity::{EventId, Timestamp, WebhookId};
use std::time::Duration;

/// Which deliveries are made once more.
#[derive(Debug, Clone, Copy)]
pub enum Replay {
    /// The one of this event.
    One(EventId),
    /// Those that ended so, of events that happened at this instant or later.
    Since(Timestamp, Option<DeliveryStatus>),
}

/// Deliveries that one transaction puts on their way.
const AT_ONCE: i64 = 1000;

/// An id may be made so long before its event happens.
const BEFORE: Duration = Duration::from_mins(1);

/// Has deliveries made once more, with all their tries; gives how many. Of many, some at a time, so that nobody waits for
/// all; what is put on its way is not found again.
pub async fn replay_deliveries(
    context: &Context,
    by: &Initiator,
    place: Place,
    webhook: WebhookId,
    replay: Replay,
) -> Result<u64, OperationError> {
    let entry = NewAuditEntry::new(place.chain(), AuditAction::WebhookReplayed).object(Object::Webhook(webhook));
    let entry = &match replay {
        Replay::One(event) => entry.detail("event", event.to_string()),
        Replay::Since(since, _) => entry.detail("since", since.seconds()),
    };
    let mut all = 0;
    loop {
        let is_first = all == 0;
        let some = async |mut tx: Write| {
            locked(&mut tx, place, webhook).await?;
            let count = replay_some(&mut tx, webhook, replay).await?;
            if is_first && count > 0 {
                tx.audit(by, entry).await?;
            }
            Ok::<_, OperationError>(tx.commit(count).await?)
        };
        let count = context.store.write("replay_deliveries", some).await?;
        context.pulse.ring();
        all += count;
        if count < AT_ONCE.unsigned_abs() {
            return Ok(all);
        }
    }
}

async fn replay_some(tx: &mut Write, webhook: WebhookId, replay: Replay) -> Result<u64, OperationError> {
    let now = tx.now();
    match replay {
        Replay::One(event) if deliveries::replay(tx.conn(), webhook, event, now).await? => Ok(1),
        Replay::One(_) => Err(OperationError::NotFound(NotFound::Delivery)),
        Replay::Since(since, status) => {
            let oldest = EventId::from_bits(id_lower_bound(since.saturating_sub(BEFORE)));
            Ok(deliveries::replay_some(tx.conn(), webhook, (since, oldest), status, (now, AT_ONCE)).await?)
        }
    }
}

/// Sends a test to a target, whatever it asked for and whether it is active or not; gives the id of its event.
pub async fn test_webhook(
    context: &Context,
    by: &Initiator,
    place: Place,
    webhook: WebhookId,
) -> Result<EventId, OperationError> {
    let id = context.new_id(EventId::from_bits);
    let news = News::Test(Test { webhook_id: webhook, service_id: place.service() });
    let work = async |mut tx: Write| {
        locked(&mut tx, place, webhook).await?;
        let now = tx.now();
        outbox::send_test(tx.conn(), &Event { id, at: now, news: news.clone() }, webhook, now).await?;
        let entry = NewAuditEntry::new(place.chain(), AuditAction::WebhookTested).object(Object::Webhook(webhook));
        tx.audit(by, &entry).await?;
        Ok::<_, OperationError>(tx.commit(id).await?)
    };
    let id = context.store.write("test_webhook", work).await?;
    context.pulse.ring();
    Ok(id)
}
