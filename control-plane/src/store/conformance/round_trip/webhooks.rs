//! Round trips of webhook targets, events and deliveries.

use super::{agent, description, managed_by, service, time, whole_list};
use crate::{
    domain::{
        service::ServiceOrDeployment,
        webhook::{
            DisabledReason, WebhookTarget,
            delivery::{Attempt, AttemptFailure, Delivery, DeliveryState, DeliveryStatus, ResponseExcerpt},
            event::{AuthenticatedEvent, Event, EventData, EventFilter, EventKind},
            url::TargetUrl,
        },
    },
    store::{
        conformance::StoreFixture,
        deliveries::{self, DueDeliveryKind, LeasedDelivery, ReplayedBatch},
        due_targets::{self, TargetPage},
        outbox,
        webhook_cleanup::{self, TargetCleanup},
        webhook_targets,
    },
};
use countersign_identity::{EventId, Timestamp, WebhookId};
use std::slice::from_ref;

fn target() -> WebhookTarget {
    WebhookTarget {
        id: WebhookId::from_bits(1),
        scope: ServiceOrDeployment::Service(service().id),
        url: TargetUrl::parse("https://hooks.example/one").unwrap(),
        events: EventFilter::parse(["agent.authenticated", "trust.feedback_received"]).unwrap(),
        description: description("of a target"),
        managed_by: managed_by("target-files"),
        created_at: time(90),
        updated_at: time(91),
        paused_at: None,
        disabled: None,
        failing_since: None,
        previous_secret_until: None,
    }
}

fn event(number: u128, at: Timestamp) -> Event {
    let (agent_id, service_id) = (agent().id, Some(service().id));
    let data = EventData::Authenticated(AuthenticatedEvent { agent_id, service_id, ip_address: None });
    Event { id: EventId::from_bits(number), at, data }
}

impl StoreFixture {
    async fn find_target(&self, target: &WebhookTarget) -> Option<WebhookTarget> {
        webhook_targets::find(self.read().await.conn(), target.scope, target.id).await.unwrap()
    }

    pub async fn webhook_targets_return_what_was_written(&self) {
        let other = WebhookTarget {
            id: WebhookId::from_bits(2),
            scope: ServiceOrDeployment::Deployment,
            events: EventFilter::default(),
            ..target()
        };
        let (id, now) = (target().id, time(95));
        self.commit(async |tx| {
            webhook_targets::insert(tx.conn(), &target(), "a secret").await?;
            webhook_targets::insert(tx.conn(), &other, "another secret").await?;
            assert!(webhook_targets::lock(tx.conn(), target().scope, id).await?);
            assert!(!webhook_targets::lock(tx.conn(), other.scope, id).await?);
            webhook_targets::lock_any_scope(tx.conn(), id).await
        })
        .await;
        for target in [target(), other] {
            assert_eq!(self.find_target(&target).await, Some(target.clone()));
            assert_eq!(webhook_targets::list(self.read().await.conn(), target.scope).await.unwrap(), [target]);
        }
        self.commit(async |tx| webhook_targets::rotate_secret(tx.conn(), id, "a new secret", time(96)).await).await;
        for (now, previous) in [(now, Some("a secret")), (time(96), None)] {
            let secrets = webhook_targets::find_secrets(self.read().await.conn(), id, now).await.unwrap().unwrap();
            assert_eq!((secrets.current.as_str(), secrets.previous.as_deref()), ("a new secret", previous));
        }
        let updated = WebhookTarget {
            url: TargetUrl::parse("https://hooks.example/two").unwrap(),
            events: EventFilter::parse(["agent.role_assigned"]).unwrap(),
            description: description("updated"),
            updated_at: time(97),
            paused_at: Some(time(98)),
            disabled: Some((time(99), DisabledReason::Failing)),
            failing_since: Some(time(100)),
            previous_secret_until: Some(time(96)),
            ..target()
        };
        self.commit(async |tx| webhook_targets::update(tx.conn(), &updated, false).await).await;
        assert_eq!(self.find_target(&updated).await, Some(updated));
        let active = WebhookTarget { updated_at: time(101), previous_secret_until: Some(time(96)), ..target() };
        self.commit(async |tx| webhook_targets::update(tx.conn(), &active, true).await).await;
        assert_eq!(self.find_target(&active).await, Some(active));
    }

    pub async fn deliveries_return_what_was_written(&self) {
        let (old, new, test) = (event(1, time(110)), event(2, time(111)), event(3, time(112)));
        let kind = EventKind::Authenticated;
        self.commit(async |tx| {
            for scope in [ServiceOrDeployment::Deployment, ServiceOrDeployment::Service(service().id)] {
                assert!(outbox::has_recipients(tx.conn(), kind, scope).await?);
            }
            assert!(outbox::enqueue(tx.conn(), from_ref(&old)).await?);
            assert!(outbox::enqueue(tx.conn(), from_ref(&new)).await?);
            assert!(outbox::has_events(tx.conn()).await?);
            assert_eq!(outbox::fan_out(tx.conn(), time(113), 1).await?, 1);
            assert_eq!(outbox::oldest_event_time(tx.conn()).await?, Some(new.at));
            assert_eq!(outbox::fan_out(tx.conn(), time(113), 9).await?, 1);
            assert!(!outbox::has_events(tx.conn()).await?);
            outbox::insert_test(tx.conn(), &test, target().id, time(114)).await
        })
        .await;
        let mut read = self.read().await;
        let conn = read.conn();
        for event in [&old, &new, &test] {
            assert_eq!(outbox::find_event_body(conn, event.id).await.unwrap(), Some(event.body()));
        }
        let pending = |event: &Event, at| Delivery {
            event: event.id,
            kind: kind.as_str().to_owned(),
            occurred_at: event.at,
            state: DeliveryState::Pending(at),
            attempts: 0,
            last_attempt: None,
        };
        let expected = [pending(&test, time(114)), pending(&new, time(113)), pending(&old, time(113))];
        assert_eq!(deliveries::list(conn, target().id, None, whole_list()).await.unwrap().items, expected);
        // The webhook target of the whole Countersign deployment also receives the events `old` and `new`.
        assert_eq!(deliveries::count_pending(conn).await.unwrap(), 5);
        assert_eq!(outbox::oldest_event_time(conn).await.unwrap(), None);
        let oldest = due_targets::oldest_due_time(conn, None, time(120), 9).await.unwrap();
        assert_eq!(oldest, TargetPage { content: Some(time(113)), next: None });
        for (now, due, due_tests) in [(time(112), 0, 0), (time(113), 2, 0), (time(114), 2, 1)] {
            let page = due_targets::list_with_due_deliveries(conn, None, now, 9).await.unwrap();
            assert_eq!((page.content.len(), page.next), (due, None));
            assert_eq!(due_targets::list_with_due_tests(conn, now, 9).await.unwrap().len(), due_tests);
        }
        drop(read);
        self.attempts_return_what_was_written(&old, &new).await;
        self.old_deliveries_are_deleted(&old, &new).await;
    }

    async fn lease(&self, kind: DueDeliveryKind, now: Timestamp, until: Timestamp) -> Vec<LeasedDelivery> {
        self.commit(async |tx| deliveries::lease(tx.conn(), target().id, kind, now, until, 9).await).await
    }

    async fn attempts_return_what_was_written(&self, old: &Event, new: &Event) {
        let (now, until) = (time(115), time(116));
        let leased = self.lease(DueDeliveryKind::FirstAttempt, now, until).await;
        let [first, second] = &leased[..] else { panic!("{leased:?}") };
        assert_eq!([first.event, second.event], [old.id, new.id]);
        assert_eq!((first.attempts, first.is_test, first.leased_until, &first.body), (0, false, until, &old.body()));
        assert!(self.lease(DueDeliveryKind::FirstAttempt, now, until).await.is_empty());
        assert!(self.lease(DueDeliveryKind::Test, now, until).await[0].is_test);

        let response = Some(ResponseExcerpt { status: 503, body: "a response".to_owned() });
        let failed = Attempt { at: time(117), response, failure: Some(AttemptFailure::Status) };
        let retry = DeliveryState::Pending(time(118));
        let delivered = Attempt { at: time(119), response: None, failure: None };
        self.commit(async |tx| {
            assert!(deliveries::record_attempt(tx.conn(), first, &failed, retry).await?);
            assert!(!deliveries::record_attempt(tx.conn(), first, &failed, retry).await?);
            assert!(deliveries::record_attempt(tx.conn(), second, &delivered, DeliveryState::Delivered).await?);
            Ok(())
        })
        .await;
        let mut read = self.read().await;
        let stored = deliveries::find(read.conn(), target().id, old.id).await.unwrap().unwrap();
        assert_eq!((stored.state, stored.attempts, stored.last_attempt), (retry, 1, Some(failed.clone())));
        let stored = deliveries::find(read.conn(), target().id, new.id).await.unwrap().unwrap();
        assert_eq!(
            (stored.state, stored.attempts, stored.last_attempt),
            (DeliveryState::Delivered, 1, Some(delivered))
        );
        drop(read);

        let leased = self.lease(DueDeliveryKind::Retry, time(118), time(120)).await;
        self.commit(async |tx| deliveries::release_lease(tx.conn(), &leased[0], time(119)).await).await;
        let leased = self.lease(DueDeliveryKind::Retry, time(119), time(121)).await;
        self.commit(async |tx| deliveries::record_attempt(tx.conn(), &leased[0], &failed, DeliveryState::Dead).await)
            .await;
        for status in [DeliveryStatus::Pending, DeliveryStatus::Delivered, DeliveryStatus::Dead] {
            let listed =
                deliveries::list(self.read().await.conn(), target().id, Some(status), whole_list()).await.unwrap();
            assert_eq!((listed.total.count, listed.items.len()), (1, 1), "{status:?}");
            assert_eq!(listed.items[0].state.status(), status);
        }
    }

    async fn old_deliveries_are_deleted(&self, old: &Event, new: &Event) {
        let (target, deployment_target, now) = (target().id, WebhookId::from_bits(2), time(122));
        self.commit(async |tx| {
            let conn = tx.conn();
            let (dead, before_all) = (Some(DeliveryStatus::Dead), EventId::from_bits(0));
            let replay = async |conn: &mut _, since, limit| {
                deliveries::replay_batch(conn, target, since, before_all, dead, now, limit).await
            };
            assert_eq!(replay(conn, new.at, 9).await?, ReplayedBatch { replayed: 0, next: None });
            assert_eq!(replay(conn, old.at, 1).await?, ReplayedBatch { replayed: 1, next: Some(old.id) });
            assert!(deliveries::replay(conn, target, new.id, now).await?);
            assert!(!deliveries::replay(conn, target, EventId::from_bits(99), now).await?);
            let replayed = deliveries::list(conn, target, Some(DeliveryStatus::Pending), whole_list()).await?.items;
            assert_eq!([replayed[1].event, replayed[2].event], [new.id, old.id]);
            assert!(replayed[1..].iter().all(|delivery| delivery.state == DeliveryState::Pending(now)));

            let cleanup = TargetCleanup { target, deleted_at: None, oldest: Some(old.id) };
            assert_eq!(webhook_cleanup::find_cleanup(conn, old.id, now).await?, None);
            let found = webhook_cleanup::find_cleanup(conn, new.id, now).await?;
            let is_one_of = |found| {
                [target, deployment_target].map(|target| Some(TargetCleanup { target, ..cleanup })).contains(&found)
            };
            assert!(is_one_of(found), "{found:?}");
            assert_eq!(deliveries::delete_before(conn, target, Some(new.id), 9).await?, 1);
            assert_eq!(deliveries::delete_before(conn, target, Some(new.id), 9).await?, 0);
            let next = TargetCleanup { target: deployment_target, ..cleanup };
            assert_eq!(webhook_cleanup::find_cleanup(conn, new.id, now).await?, Some(next));
            assert_eq!(outbox::EVENTS.oldest(conn, EventId::from_bits(0)).await?, Some(old.id));
            assert_eq!(outbox::EVENTS.delete(conn, old.id, new.id, 9).await?, 1);
            assert_eq!(outbox::EVENTS.oldest(conn, EventId::from_bits(0)).await?, Some(new.id));
            assert_eq!(outbox::find_event_body(conn, old.id).await?, None);
            assert!(outbox::find_event_body(conn, new.id).await?.is_some());

            webhook_targets::mark_deleted(conn, deployment_target, now).await?;
            let cleanup = webhook_cleanup::find_cleanup(conn, old.id, time(121)).await?.unwrap();
            assert_eq!((cleanup.target, cleanup.deleted_at), (deployment_target, Some(now)));
            assert!(cleanup.oldest.is_some());
            while deliveries::delete_before(conn, deployment_target, None, 1).await? > 0 {}
            assert_eq!(webhook_cleanup::find_cleanup(conn, old.id, time(121)).await?, None);
            let cleanup = TargetCleanup { oldest: None, ..cleanup };
            assert_eq!(webhook_cleanup::find_cleanup(conn, old.id, now).await?, Some(cleanup));
            assert_eq!(webhook_cleanup::delete_row(conn, deployment_target, time(121)).await?, 0);

            let oldest = webhook_cleanup::oldest_previous_secret(conn).await?.unwrap();
            assert_eq!(webhook_cleanup::delete_expired_secrets(conn, time(0), 9).await?, 0);
            assert_eq!(webhook_cleanup::delete_expired_secrets(conn, oldest, 9).await?, 1);
            assert_eq!(webhook_cleanup::oldest_previous_secret(conn).await?, None);
            Ok(())
        })
        .await;
    }
}
