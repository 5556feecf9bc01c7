//! Events that this version does not know.

use super::{time, webhooks::event};
use crate::store::{
    conformance::StoreFixture,
    outbox::{self, FanOut},
};
use countersign_identity::EventId;

impl StoreFixture {
    /// Leaves values for the test `every_column_was_written`.
    pub async fn unknown_events_are_set_aside_until_they_are_known(&self) {
        let unknown = EventId::from_bits(900);
        self.commit(async |tx| {
            outbox::fan_out(tx.conn(), time(139), 9).await?;
            outbox::enqueue(tx.conn(), &[event(900, time(140))]).await?;
            outbox::enqueue(tx.conn(), &[event(901, time(141))]).await?;
            let newer = "UPDATE webhook_outbox SET kind = 'agent.renamed' WHERE id = $1";
            sqlx::query(newer).bind(unknown.to_string()).execute(tx.conn()).await?;
            let set_aside = FanOut { events: 2, set_aside: vec![(unknown.to_string(), "agent.renamed".to_owned())] };
            assert_eq!(outbox::fan_out(tx.conn(), time(142), 9).await?, set_aside);
            assert!(outbox::find_event_body(tx.conn(), EventId::from_bits(901)).await?.is_some());
            assert!(!outbox::has_events(tx.conn()).await?, "the event that is set aside does not wait");
            assert_eq!(outbox::oldest_event_time(tx.conn()).await?, None);

            assert_eq!(outbox::retry_set_aside(tx.conn(), time(141), 9).await?, 0, "it was set aside later");
            assert_eq!(outbox::retry_set_aside(tx.conn(), time(142), 9).await?, 1);
            let fan_out = outbox::fan_out(tx.conn(), time(143), 9).await?;
            assert_eq!(fan_out, FanOut { events: 1, ..set_aside.clone() }, "this version does still not know it");
            assert_eq!(outbox::oldest_event(tx.conn(), unknown).await?, Some(unknown));
            assert_eq!(outbox::delete_events_before(tx.conn(), (unknown, EventId::from_bits(901)), 9).await?, 1);
            assert_eq!(outbox::oldest_event(tx.conn(), unknown).await?, Some(EventId::from_bits(901)));

            outbox::enqueue(tx.conn(), &[event(900, time(140))]).await?;
            sqlx::query(newer).bind(unknown.to_string()).execute(tx.conn()).await?;
            outbox::fan_out(tx.conn(), time(143), 9).await?;
            outbox::enqueue(tx.conn(), &[event(902, time(144))]).await?;
            Ok(())
        })
        .await;
    }
}
