//! Deliver once more; or send a test.

use super::{Context, Denied, Missing, change_webhook::locked};
use crate::{
    domain::{
        audit::{Act, Author, Entry, Object},
        webhook::{
            Place,
            delivery::DeliveryStatus,
            event::{Event, News, Test},
        },
    },
    store::{Write, deliveries, outbox},
};
use countersign_identity::{EventId, Timestamp, WebhookId};

/// Which deliveries are made once more.
#[derive(Debug, Clone, Copy)]
pub enum Replay {
    /// The one of this event.
    One(EventId),
    /// Those that ended so, of events that happened at this instant or later.
    Since(Timestamp, Option<DeliveryStatus>),
}

/// Has deliveries made once more, with all their tries; gives how many.
pub async fn replay_deliveries(
    context: &Context,
    by: &Author,
    place: Place,
    webhook: WebhookId,
    replay: Replay,
) -> Result<u64, Denied> {
    let work = async |mut tx: Write| {
        locked(&mut tx, place, webhook).await?;
        let now = tx.now();
        let count = match replay {
            Replay::One(event) if deliveries::replay(tx.conn(), webhook, event, now).await? => 1,
            Replay::One(_) => return Err(Denied::Missing(Missing::Delivery)),
            Replay::Since(since, status) => deliveries::replay_since(tx.conn(), webhook, since, status, now).await?,
        };
        if count > 0 {
            let act = Entry::of(place.chain(), Act::WebhookReplayed).with(Object::Webhook(webhook));
            tx.record(by, &act.saying("deliveries", count)).await?;
        }
        Ok(tx.commit(count).await?)
    };
    let count = context.store.write("replay_deliveries", work).await?;
    context.pulse.ring();
    Ok(count)
}

/// Sends a test to a target, whatever it asked for and whether it is active or not; gives the id of its event.
pub async fn test_webhook(context: &Context, by: &Author, place: Place, webhook: WebhookId) -> Result<EventId, Denied> {
    let id = context.fresh(EventId::from_bits);
    let news = News::Test(Test { webhook_id: webhook, service_id: place.service() });
    let work = async |mut tx: Write| {
        locked(&mut tx, place, webhook).await?;
        let now = tx.now();
        outbox::send_test(tx.conn(), &Event { id, at: now, news: news.clone() }, webhook, now).await?;
        let act = Entry::of(place.chain(), Act::WebhookTested).with(Object::Webhook(webhook));
        tx.record(by, &act).await?;
        Ok::<_, Denied>(tx.commit(id).await?)
    };
    let id = context.store.write("test_webhook", work).await?;
    context.pulse.ring();
    Ok(id)
}
