//! The recipients of webhook events, and the revision after a restore.

use super::{agent, service, time, whole_list};
use crate::{
    domain::{
        service::ServiceOrDeployment,
        webhook::{
            WebhookTarget,
            delivery::{Delivery, DeliveryState},
            event::{AuthenticatedEvent, Event, EventData, EventFilter, EventKind},
            url::TargetUrl,
        },
    },
    store::{conformance::StoreFixture, deliveries, feed, outbox, query::params, webhook_targets},
};
use countersign_identity::{AgentId, EventId, Revision, ServiceId, Timestamp, WebhookId};
use std::{slice::from_ref, time::Duration};

/// A webhook target of a service.
const TARGET: WebhookId = WebhookId::from_bits(10);

const KIND: EventKind = EventKind::Authenticated;

fn target() -> WebhookTarget {
    WebhookTarget {
        id: TARGET,
        scope: ServiceOrDeployment::Service(service().id),
        url: TargetUrl::parse("https://hooks.example/ten").unwrap(),
        events: EventFilter::parse([KIND.as_str()]).unwrap(),
        description: super::description("of another target"),
        managed_by: None,
        created_at: time(200),
        updated_at: time(201),
        paused_at: None,
        disabled: None,
        failing_since: None,
        previous_secret_until: None,
    }
}

/// An event about an agent. An event without a service goes only to the targets of the deployment.
fn event(number: u128, agent_id: AgentId, service_id: Option<ServiceId>, at: Timestamp) -> Event {
    let data = EventData::Authenticated(AuthenticatedEvent { agent_id, service_id, ip_address: None });
    Event { id: EventId::from_bits(number), at, data }
}

impl StoreFixture {
    /// First replaces all targets by a target that receives one kind of event.
    pub async fn events_are_delivered_only_to_their_audience(&self) {
        let (agent, service) = (agent().id, service().id);
        self.commit(async |tx| {
            let conn = tx.conn();
            // Earlier tests may have left events in the outbox.
            outbox::fan_out(conn, time(202), 9).await?;
            conn.apply("DELETE FROM webhook_targets", params![]).await?;
            webhook_targets::insert(conn, &target(), "a secret").await
        })
        .await;

        let other_service = ServiceId::from_bits(9);
        let mut read = self.read().await;
        for (kind, scope, expected) in [
            (KIND, ServiceOrDeployment::Service(service), true),
            (KIND, ServiceOrDeployment::Service(other_service), false),
            (EventKind::RoleAssigned, ServiceOrDeployment::Service(service), false),
            (KIND, ServiceOrDeployment::Deployment, false),
        ] {
            let has_recipients = outbox::has_recipients(read.conn(), kind, scope).await.unwrap();
            assert_eq!(has_recipients, expected, "{kind:?} of {scope:?}");
        }
        drop(read);

        let first = event(20, agent, Some(service), time(210));
        let second = event(21, agent, Some(service), time(211));
        self.commit(async |tx| {
            let conn = tx.conn();
            let without_target = [event(22, agent, None, time(212)), event(23, agent, Some(other_service), time(212))];
            assert!(!outbox::enqueue(conn, &without_target).await?);
            let [before, after] = without_target;
            assert!(outbox::enqueue(conn, &[before, first.clone(), after]).await?);
            assert!(outbox::enqueue(conn, from_ref(&second)).await?);
            // The time of its fan-out is the time at which a delivery is due.
            assert_eq!(outbox::fan_out(conn, time(6), 1).await?, 1);
            outbox::fan_out(conn, time(213), 9).await?;
            Ok(())
        })
        .await;
        let pending = |event: &Event, due| Delivery {
            event: event.id,
            kind: KIND.as_str().to_owned(),
            occurred_at: event.at,
            state: DeliveryState::Pending(due),
            attempts: 0,
            last_attempt: None,
        };
        let mut read = self.read().await;
        let listed = deliveries::list(read.conn(), TARGET, None, whole_list()).await.unwrap().items;
        assert_eq!(listed, [pending(&second, time(213)), pending(&first, time(6))]);
        assert_eq!(outbox::find_event_body(read.conn(), first.id).await.unwrap(), Some(first.body()));
        drop(read);
    }

    /// The revision after a restore is ahead of the clock, and ahead of the revision before the restore.
    pub async fn revision_advances_past_the_clock_and_the_last_revision(&self) {
        let (micros, skew) = (Duration::from_micros(7), Duration::from_mins(5));
        let before = self.current_revision().await;
        // The clock is behind. The microseconds of its second are part of the step, so that two restores get different revisions.
        let past = Timestamp::from_seconds(1).saturating_add(micros);
        self.commit(async |tx| feed::advance_after_restore(tx.conn(), past).await).await;
        let stepped = self.current_revision().await;
        assert_eq!(
            stepped,
            Revision::new(before.number() + 8),
            "if the clock is behind, the step is 1 plus the microseconds of the clock"
        );
        // The clock is level with the revision: the new revision is the time plus the largest skew of clocks.
        let now = Timestamp::from_micros(stepped.number());
        self.commit(async |tx| feed::advance_after_restore(tx.conn(), now).await).await;
        assert_eq!(self.current_revision().await, Revision::new(now.saturating_add(skew).micros()));
    }
}
