//! Round trips of rows that bound the size of tables: feedback, agents that never logged in, and deleted agents.

use super::{
    Registration, agent, credentials::session, description, metadata, name, owner, service, time, webhooks::event,
    whole_list,
};
use crate::{
    domain::{
        agent::Agent,
        quota::DELETED_AGENT_COUNTS_FOR,
        session::Session,
        trust::{Feedback, Rating, Score},
    },
    store::{
        Conn, agents,
        conformance::StoreFixture,
        deleted_agents, outbox,
        purge::{self, Deleted},
        quotas, sessions,
        trust::{self, MAX_KEPT_FEEDBACK},
        unused_agents,
    },
};
use countersign_identity::{AgentId, AgentStatus, EventId, FeedbackId, Revision, SessionId};
use std::time::Duration;

fn feedback(id: u128, agent: AgentId) -> Feedback {
    Feedback {
        id: FeedbackId::from_bits(id),
        agent,
        service: service().id,
        score: Score::from_millionths(1).unwrap(),
        reason: description("a reason"),
        metadata: metadata("of feedback"),
        created_at: time(80),
    }
}

impl StoreFixture {
    /// Must run after [`Self::deleted_agents_keep_only_their_id`]: what depends on the agent 61 is not removed yet.
    pub async fn rows_of_deleted_agents_are_removed(&self) {
        let (kept, gone) = (AgentId::from_bits(61), AgentId::from_bits(62));
        let registration = Registration { owner: None, name: name("to be removed"), ..agent().registration };
        let created = Agent { id: gone, registration, status: AgentStatus::Active, ..agent() };
        let session = Session { id: SessionId::from_bits(62), agent: gone, ..session() };
        let rating = Rating { service: service().id, weight: 1.0, mean: 2.0, rated_at: time(53) };
        self.commit(async |tx| {
            assert!(agents::insert(tx.conn(), &created).await?);
            assert!(sessions::insert(tx.conn(), &session, "challenge of a deleted agent").await?);
            for id in 621..624 {
                trust::insert_feedback(tx.conn(), &feedback(id, gone)).await?;
            }
            trust::upsert_rating(tx.conn(), gone, &rating).await?;
            agents::mark_deleted(tx.conn(), gone, Revision::new(7), time(53)).await?;
            purge::finish(tx.conn(), Deleted::Agent(gone), time(70), Duration::from_secs(10)).await
        })
        .await;
        self.commit(async |tx| {
            let conn = tx.conn();
            assert_eq!(deleted_agents::oldest_row(conn, time(52)).await?, Some(time(52)));
            assert_eq!(deleted_agents::oldest_row(conn, time(54)).await?, None);
            assert_eq!(deleted_agents::list_rows(conn, time(52), time(53), 9).await?, [kept, gone]);
            assert_eq!(deleted_agents::list_rows(conn, time(52), time(53), 1).await?, [kept]);
            assert_eq!(deleted_agents::remove(conn, kept, time(90), 9).await?, 1, "its rows are not removed yet");
            assert_eq!(deleted_agents::remove(conn, gone, time(91), 9).await?, 1, "it has a session");
            assert_eq!(deleted_agents::list_rows(conn, time(52), time(89), 9).await?, []);
            assert_eq!(deleted_agents::list_rows(conn, time(90), time(91), 9).await?, [kept, gone]);
            assert_eq!(sessions::delete_expired(conn, session.expires_at, time(99), 9).await?, 1);
            for (limit, changed) in [(2, 2), (3, 3)] {
                assert_eq!(deleted_agents::remove(conn, gone, time(92), limit).await?, changed);
            }
            assert!(trust::list_feedback(conn, gone, &whole_list()).await?.items.is_empty());
            assert_eq!(trust::find_rating(conn, gone, service().id).await?, None);
            assert_eq!(deleted_agents::list_rows(conn, time(52), time(99), 9).await?, [kept]);
            assert_eq!(agents::find_state(conn, gone).await?, None);
            Ok(())
        })
        .await;
    }

    pub async fn deletions_of_agents_count_for_a_quota(&self) {
        let (owner, other) = (owner("deleting"), owner("other"));
        self.commit(async |tx| {
            let conn = tx.conn();
            for at in [time(60), time(60), time(61)] {
                deleted_agents::count_deletion(conn, &owner, at).await?;
            }
            deleted_agents::count_deletion(conn, &other, time(62)).await?;
            let end = |at: i64| time(at).saturating_add(DELETED_AGENT_COUNTS_FOR);
            for (now, limit, reached) in [
                (time(62), 3, true),
                (time(62), 4, false),
                (end(60), 1, true),
                (end(60), 2, false),
                (end(61), 1, false),
            ] {
                assert_eq!(quotas::agent_quota_is_reached(conn, &owner, limit, now).await?, reached, "{limit}");
            }
            assert_eq!(deleted_agents::oldest_deletion(conn, time(0)).await?, Some(time(60)));
            assert_eq!(deleted_agents::oldest_deletion(conn, time(61)).await?, Some(time(61)));
            assert_eq!(deleted_agents::delete_deletions(conn, time(0), time(61), 1).await?, 1);
            assert_eq!(deleted_agents::delete_deletions(conn, time(0), time(61), 9).await?, 1);
            // Leaves values for the test `every_column_was_written`.
            assert_eq!(deleted_agents::oldest_deletion(conn, time(0)).await?, Some(time(62)));
            Ok(())
        })
        .await;
    }

    pub async fn unused_agents_return_what_was_written(&self) {
        let agents = [1, 2, 3].map(AgentId::from_bits);
        self.commit(async |tx| {
            let conn = tx.conn();
            for (number, agent) in (70..).zip(agents) {
                unused_agents::insert(conn, agent, time(number)).await?;
            }
            assert_eq!(unused_agents::oldest_registration(conn, time(0)).await?, Some(time(70)));
            assert_eq!(unused_agents::oldest_registration(conn, time(71)).await?, Some(time(71)));
            assert_eq!(unused_agents::list(conn, time(71), time(72), 9).await?, agents[1..]);
            assert_eq!(unused_agents::list(conn, time(70), time(71), 1).await?, agents[..1]);
            unused_agents::remove(conn, &agents[..1]).await?;
            unused_agents::restart_waiting(conn, time(75)).await?;
            assert_eq!(unused_agents::oldest_registration(conn, time(0)).await?, Some(time(75)));
            // Leaves values for the test `every_column_was_written`.
            assert_eq!(unused_agents::list(conn, time(0), time(99), 9).await?.len(), 2);
            Ok(())
        })
        .await;
    }

    /// Must run after the only other feedback about the agent, with the id 1, was inserted.
    pub async fn old_feedback_is_deleted(&self) {
        let (agent, service) = (agent().id, service().id);
        let first = FeedbackId::from_bits;
        self.commit(async |tx| {
            let conn = tx.conn();
            let excess = 12;
            for id in (0..MAX_KEPT_FEEDBACK + excess).map(|id| u128::from(id.unsigned_abs()) + 1000) {
                trust::insert_feedback(conn, &feedback(id, agent)).await?;
            }
            let total = async |conn: &mut Conn| {
                trust::list_feedback(conn, agent, &whole_list()).await.map(|list| list.total.count)
            };
            // With the feedback that another test left, there are 13 more.
            for remaining in [3, 0, 0] {
                trust::delete_excess_feedback(conn, agent, service).await?;
                assert_eq!(total(conn).await?, MAX_KEPT_FEEDBACK + remaining);
            }
            assert_eq!(trust::oldest_feedback(conn, first(0)).await?, Some(first(1012)));
            assert_eq!(trust::oldest_feedback(conn, first(1020)).await?, Some(first(1020)));
            assert_eq!(trust::delete_feedback_before(conn, first(1014), first(1018), 3).await?, 3);
            assert_eq!(trust::delete_feedback_before(conn, first(0), first(1014), 9).await?, 2);
            // Leaves values for the test `every_column_was_written`.
            assert_eq!(trust::oldest_feedback(conn, first(0)).await?, Some(first(1017)));
            Ok(())
        })
        .await;
    }

    /// Must run when some webhook receives the event.
    pub async fn waiting_events_are_deleted_by_age(&self) {
        self.commit(async |tx| {
            let conn = tx.conn();
            for id in [910, 911, 912, 913] {
                assert!(outbox::enqueue(conn, &[event(id, time(150))]).await?);
            }
            let id = EventId::from_bits;
            assert_eq!(outbox::oldest_waiting(conn, id(910)).await?, Some(id(910)));
            assert_eq!(outbox::delete_waiting_before(conn, id(910), id(912), 1).await?, 1);
            assert_eq!(outbox::delete_waiting_before(conn, id(910), id(912), 9).await?, 1);
            assert_eq!(outbox::oldest_waiting(conn, id(910)).await?, Some(id(912)));
            assert_eq!(outbox::delete_waiting_before(conn, id(910), id(914), 9).await?, 2);
            Ok(())
        })
        .await;
    }
}
