//! Round trips of the change feed, feedback on agents and the audit log.

use super::{agent, deletions::DELETED, description, metadata, owner, service, time, whole_list};
use crate::{
    domain::{
        audit::{Actor, AuditAction, AuditedObject, Initiator, NewAuditEntry, RequestOrigin},
        caller::Human,
        change::{Change, FeedPosition, Recipients, RevisionRange},
        page::{ItemCount, ListPage},
        service::ServiceOrDeployment,
        trust::{Feedback, Rating, RatingBySource, Score},
    },
    store::{
        audit::{self, AuditFilter},
        conformance::StoreFixture,
        feed, known_agents, trust,
    },
};
use countersign_identity::{AgentId, FeedbackId, Revision, RoleId, ServiceId, SessionId, Timestamp, TokenId};
use serde_json::json;
use std::time::Duration;

/// Changes with their recipients. No agent and no session of these changes has a live token.
const CHANGES: [(Change, Recipients); 9] = [
    (Change::Roles(AgentId::from_bits(11), ServiceId::from_bits(2)), Recipients::Service(ServiceId::from_bits(2))),
    (Change::Trust(AgentId::from_bits(13)), Recipients::NoService),
    (Change::Status(AgentId::from_bits(14)), Recipients::NoService),
    (Change::Definitions(ServiceId::from_bits(5)), Recipients::Service(ServiceId::from_bits(5))),
    (Change::ServiceSettings(ServiceId::from_bits(6)), Recipients::Service(ServiceId::from_bits(6))),
    (Change::Token(TokenId::from_bits(7), None), Recipients::UnboundTokens),
    (Change::Token(TokenId::from_bits(9), Some(ServiceId::from_bits(3))), Recipients::Service(ServiceId::from_bits(3))),
    (Change::Session(SessionId::from_bits(18)), Recipients::NoService),
    (Change::Keys, Recipients::AllServices),
];

impl StoreFixture {
    pub async fn feed_returns_what_was_written(&self) {
        let start = feed::position(self.read().await.conn()).await.unwrap();
        let revision = self
            .commit(async |tx| {
                for (change, _) in CHANGES {
                    tx.record_change(change);
                }
                tx.revision().await
            })
            .await;
        let next = self.commit(async |tx| tx.revision().await).await;
        let mut read = self.read().await;
        let conn = read.conn();
        let changes = self.changed_entries(RevisionRange { since: start.revision, until: next }, None).await;
        assert!(changes.iter().all(|change| change.revision == revision));
        assert_eq!(changes.iter().map(|entry| (entry.change, entry.recipients)).collect::<Vec<_>>(), CHANGES);
        let position = feed::position(conn).await.unwrap();
        assert_eq!(position, FeedPosition { revision: next, ..start });
        for (revision, expected) in
            [(revision, true), (next, true), (start.floor, true), (Revision::new(revision.number() - 1), false)]
        {
            assert_eq!(feed::can_resume_at(conn, position, revision).await.unwrap(), expected);
        }
        for (token, expected) in [(7, true), (8, false)] {
            assert_eq!(feed::token_is_revoked(conn, TokenId::from_bits(token)).await.unwrap(), expected);
        }
        drop(read);
        self.floor_rises_past_old_changes().await;
    }

    /// A restore raises the revision, the floor and the cutoff of the feed. Housekeeping raises the floor past changes that are old
    /// enough, so that they can be deleted.
    async fn floor_rises_past_old_changes(&self) {
        let now = self.first.now();
        self.commit(async |tx| feed::advance_after_restore(tx.conn(), now).await).await;
        let position = feed::position(self.read().await.conn()).await.unwrap();
        assert!(position.revision.number() > now.micros());
        assert_eq!((position.floor, position.cutoff), (position.revision, position.revision));

        let [old, new] = [10, 20].map(|step| Revision::new(position.revision.number() + step));
        self.commit(async |tx| {
            feed::append_changes(tx.conn(), old, &[Change::Keys], time(1)).await?;
            feed::append_changes(tx.conn(), new, &CHANGES.map(|(change, _)| change), time(2)).await?;
            feed::raise_floor(tx.conn(), time(0)).await?;
            assert_eq!(feed::position(tx.conn()).await?.floor, position.floor);
            feed::raise_floor(tx.conn(), time(1)).await?;
            assert_eq!(feed::position(tx.conn()).await?.floor, old);
            assert_eq!(feed::oldest_change(tx.conn(), time(1), time(2)).await?, Some(time(1)));
            assert_eq!(feed::oldest_change(tx.conn(), time(2), time(2)).await?, None, "above the floor");
            assert_eq!(feed::delete_below_floor(tx.conn(), time(1), time(1), 9).await?, 1);
            while feed::delete_below_floor(tx.conn(), time(-1), now, 2).await? > 0 {}
            Ok(())
        })
        .await;
        let mut read = self.read().await;
        assert_eq!(feed::position(read.conn()).await.unwrap().floor, old);
        let full_range = RevisionRange { since: Revision::default(), until: Revision::new(i64::MAX) };
        let changes = self.changed_entries(full_range, None).await;
        assert!(changes.iter().all(|change| change.revision == new) && changes.len() == CHANGES.len());
        drop(read);
        // A commit while the clock was far ahead does not stop the floor, and the floor never falls.
        let [ahead, after] = [30, 40].map(|step| Revision::new(position.revision.number() + step));
        self.commit(async |tx| {
            feed::append_changes(tx.conn(), ahead, &[Change::Keys], time(9_000)).await?;
            feed::append_changes(tx.conn(), after, &[Change::Keys], time(3)).await?;
            for (horizon, expected) in [(3, after), (2, after), (9_000, after)] {
                feed::raise_floor(tx.conn(), time(horizon)).await?;
                assert_eq!(feed::position(tx.conn()).await?.floor, expected, "{horizon}");
            }
            Ok(())
        })
        .await;
    }

    pub async fn feedback_returns_what_was_written(&self) {
        let (agent, service, rated_at) = (agent().id, service(), time(81));
        let feedback = Feedback {
            id: FeedbackId::from_bits(1),
            agent,
            service: service.id,
            score: Score::from_millionths(12_345_678).unwrap(),
            reason: description("a reason"),
            metadata: metadata("of feedback"),
            created_at: time(80),
        };
        let rating = Rating { service: service.id, weight: 1.5, mean: 62.25, rated_at };
        let updated = Rating { weight: 2.5, mean: 63.75, rated_at: time(82), ..rating.clone() };
        self.commit(async |tx| {
            trust::insert_feedback(tx.conn(), &feedback).await?;
            trust::upsert_rating(tx.conn(), agent, &rating).await?;
            assert_eq!(trust::find_rating(tx.conn(), agent, service.id).await?, Some(rating.clone()));
            trust::upsert_rating(tx.conn(), agent, &updated).await
        })
        .await;
        let mut read = self.read().await;
        let listed = trust::list_feedback(read.conn(), agent, &whole_list()).await.unwrap();
        assert_eq!(listed, ListPage { items: vec![feedback], total: ItemCount::exact(1), next: None });
        let rating = |is_known| RatingBySource { rating: updated.clone(), owner: service.owner.clone(), is_known };
        assert_eq!(trust::find_rating(read.conn(), agent, ServiceId::from_bits(2)).await.unwrap(), None);
        assert_eq!(trust::list_ratings(read.conn(), agent, time(83)).await.unwrap(), [rating(false)]);
        drop(read);
        self.commit(async |tx| known_agents::record_contact(tx.conn(), agent, service.id, time(83)).await).await;
        let mut read = self.read().await;
        assert_eq!(trust::list_ratings(read.conn(), agent, time(83)).await.unwrap(), [rating(true)]);
        let forgotten = time(83).saturating_add(known_agents::KNOWN_FOR);
        assert_eq!(trust::list_ratings(read.conn(), agent, forgotten).await.unwrap(), [rating(false)]);
        drop(read);
        self.commit(async |tx| {
            trust::delete_rating(tx.conn(), agent, ServiceId::from_bits(2)).await?;
            assert_eq!(trust::find_rating(tx.conn(), agent, service.id).await?, Some(updated.clone()));
            trust::delete_rating(tx.conn(), agent, service.id).await?;
            assert_eq!(trust::find_rating(tx.conn(), agent, service.id).await?, None);
            trust::upsert_rating(tx.conn(), agent, &updated).await
        })
        .await;
        self.commit(async |tx| {
            trust::mark_changed(tx.conn(), agent).await?;
            trust::mark_changed(tx.conn(), agent).await?;
            assert!(trust::has_changed_agents(tx.conn()).await?);
            assert_eq!(trust::take_changed_agents(tx.conn(), Some(agent), 9).await?, []);
            assert_eq!(trust::take_changed_agents(tx.conn(), None, 9).await?, [agent]);
            assert!(!trust::has_changed_agents(tx.conn()).await?);
            Ok(())
        })
        .await;
    }

    pub async fn audit_log_returns_what_was_written(&self) {
        let origin = RequestOrigin { address: Some([192, 0, 2, 7].into()), request_id: Some("a request".to_owned()) };
        let initiator =
            Initiator { actor: Actor::Human(Human { identity: owner("initiator"), is_admin: false }), origin };
        let (service, other, role) = (service().id, ServiceId::from_bits(2), RoleId::from_bits(9));
        let entry =
            |action| NewAuditEntry::for_service(service, action).agent(agent().id).object(AuditedObject::Role(role));
        self.commit(async |tx| {
            assert!(!audit::lock_and_check_started(tx.conn()).await?);
            assert_eq!(audit::services_without_chain(tx.conn()).await?, [service, other, DELETED]);
            tx.audit(&initiator, &entry(AuditAction::ServiceCreated)).await?;
            tx.audit(&initiator, &entry(AuditAction::RoleAssigned).with_detail("name", "a detail")).await?;
            tx.audit(&Initiator::SYSTEM, &NewAuditEntry::for_deployment(AuditAction::AuditBegan)).await
        })
        .await;
        let mut read = self.read().await;
        let conn = read.conn();
        assert_eq!(audit::services_without_chain(conn).await.unwrap(), [other, DELETED]);
        let (chain, mut entries) = (service.to_string(), Vec::new());
        let keys = self.first.audit_keys();
        let verified = audit::verify_chain(conn, keys, &chain, |entry| entries.push(entry.clone())).await.unwrap();
        assert_eq!(verified.unwrap().length, 2);
        let entry = entries.pop().unwrap();
        assert_eq!((entry.sequence, entry.action.as_str()), (2, "role.assigned"));
        let Initiator { actor, origin: _ } = initiator;
        let (kind, issuer, id) = actor.kind_issuer_and_id();
        assert_eq!((entry.actor_kind.as_str(), entry.actor_issuer.as_deref(), &entry.actor_id), (kind, issuer, &id));
        assert_eq!([&entry.address, &entry.request_id].map(Option::as_deref), [Some("192.0.2.7"), Some("a request")]);
        assert_eq!(entry.agent, Some(agent().id.to_string()));
        assert_eq!((entry.object_kind.as_deref(), entry.object_id), (Some("role"), Some(role.to_string())));
        assert_eq!(entry.details, json!({ "name": "a detail" }).to_string());
        assert_eq!(audit::newest_entry_time(conn).await.unwrap(), Some(entry.at));
        let mut chains = audit::list_chains(conn).await.unwrap();
        chains.sort();
        assert_eq!(chains, ["deployment".to_owned(), chain, other.to_string(), DELETED.to_string()]);
        drop(read);
        self.filters_select_audit_entries(entry.at).await;
    }

    async fn filters_select_audit_entries(&self, at: Timestamp) {
        let all = AuditFilter::default();
        let chain = Some(ServiceOrDeployment::Service(service().id));
        let (action, agent) = (Some(AuditAction::RoleAssigned), Some(agent().id));
        let after = Some(at.saturating_add(Duration::from_micros(1)));
        let filters = [
            (all.clone(), 3),
            (AuditFilter { chain, ..all.clone() }, 2),
            (AuditFilter { action, ..all.clone() }, 1),
            (AuditFilter { agent, ..all.clone() }, 2),
            (AuditFilter { chain, action, agent, ..all.clone() }, 1),
            (AuditFilter { chain: Some(ServiceOrDeployment::Deployment), agent, ..all.clone() }, 0),
            (AuditFilter { since: Some(at), until: after, ..all.clone() }, 3),
            (AuditFilter { since: after, ..all.clone() }, 0),
            (AuditFilter { until: Some(at), ..all }, 0),
        ];
        let mut read = self.read().await;
        for (filter, expected) in filters {
            let listed = audit::list(read.conn(), &filter, &whole_list()).await.unwrap();
            assert_eq!(
                (listed.total.count, listed.items.len()),
                (expected, usize::try_from(expected).unwrap()),
                "{filter:?}"
            );
        }
    }
}
