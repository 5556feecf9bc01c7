//! Tests that a change of an agent or a session is sent to the audiences of its live tokens.

use super::{
    Registration, agent,
    credentials::{UNKNOWN_SERVICE, login_query, session},
    service, time,
};
use crate::{
    domain::{
        agent::Agent,
        change::{Change, Recipients, RevisionRange},
    },
    store::{agents, conformance::StoreFixture, feed::RecipientFilter, logins, token_audiences},
};
use countersign_identity::{AgentId, AgentStatus, Revision, ServiceId, Timestamp};
use std::time::Duration;

const OTHER_AGENT: AgentId = AgentId::from_bits(2);
const OTHER_SERVICE: ServiceId = ServiceId::from_bits(2);
const SECOND: Duration = Duration::from_secs(1);

impl StoreFixture {
    pub async fn changes_go_to_live_audiences(&self) {
        let (now, service) = (self.first.now(), service().id);
        let long_ago = now.saturating_sub(token_audiences::MAX_SIDECAR_LAG + SECOND);
        let just_now = now.saturating_sub(SECOND);
        self.commit(async |tx| {
            let conn = tx.conn();
            for (agent, audience, expires_at) in [
                (agent().id, Some(service), now.saturating_add(SECOND)), // live
                (agent().id, Some(service), long_ago),                   // does not shorten the first one
                (agent().id, None, just_now), // expired, but the clock of a sidecar may be behind
                (agent().id, Some(OTHER_SERVICE), long_ago), // expired for every sidecar
                (OTHER_AGENT, Some(OTHER_SERVICE), just_now), // like the third one
            ] {
                token_audiences::record(conn, agent, audience, expires_at).await?;
            }
            Ok(())
        })
        .await;
        let unbound_and_service = [Recipients::UnboundTokens, Recipients::Service(service)];
        let other = [Recipients::Service(OTHER_SERVICE)];
        for (change, expected) in [
            (Change::Status(agent().id), &unbound_and_service[..]),
            (Change::Trust(agent().id), &unbound_and_service),
            (Change::Trust(OTHER_AGENT), &other),
            // `refresh_tokens_return_what_was_written` gave the session both services. The token for `OTHER_SERVICE` has expired.
            (Change::Session(session().id), &unbound_and_service[1..]),
        ] {
            assert_eq!(self.recipients_of(change).await, expected, "{change:?}");
        }
        self.entries_are_filtered_by_recipient().await;
        self.audiences_are_counted_and_deleted(now).await;
    }

    /// Records a change. Returns the recipients of its entries in the feed.
    async fn recipients_of(&self, change: Change) -> Vec<Recipients> {
        let revision = self
            .commit(async |tx| {
                tx.record_change(change);
                tx.revision().await
            })
            .await;
        let range = RevisionRange { since: Revision::new(revision.number() - 1), until: revision };
        let entries = self.changed_entries(range, None).await;
        assert!(entries.iter().all(|entry| entry.change == change && entry.revision == revision));
        entries.iter().map(|entry| entry.recipients).collect()
    }

    async fn entries_are_filtered_by_recipient(&self) {
        let since = self.current_revision().await;
        self.commit(async |tx| {
            for change in [Change::Keys, Change::Status(agent().id), Change::Status(OTHER_AGENT)] {
                tx.record_change(change);
            }
            Ok(())
        })
        .await;
        let range = RevisionRange { since, until: self.current_revision().await };
        for (service, includes_unbound, expected) in [
            (service().id, true, vec![Change::Keys, Change::Status(agent().id), Change::Status(agent().id)]),
            (service().id, false, vec![Change::Keys, Change::Status(agent().id)]),
            (OTHER_SERVICE, true, vec![Change::Keys, Change::Status(agent().id), Change::Status(OTHER_AGENT)]),
            (OTHER_SERVICE, false, vec![Change::Keys, Change::Status(OTHER_AGENT)]),
        ] {
            let filter = Some(RecipientFilter { service, includes_unbound });
            let entries = self.changed_entries(range, filter).await;
            assert_eq!(entries.iter().map(|entry| entry.change).collect::<Vec<_>>(), expected);
        }
    }

    /// A change of an agent contains the state that the agent had at the revision of the change.
    pub async fn changes_contain_the_state_as_of_their_revision(&self) {
        let id = AgentId::from_bits(70);
        let key_hash = "hash of another key".to_owned();
        let changed = Agent { id, registration: Registration { key_hash, ..agent().registration }, ..agent() };
        let range = RevisionRange { since: self.current_revision().await, until: Revision::new(i64::MAX) };
        self.commit(async |tx| {
            assert!(agents::insert(tx.conn(), &changed).await?);
            token_audiences::record(tx.conn(), id, Some(OTHER_SERVICE), time(i64::MAX / 2)).await
        })
        .await;
        for status in [AgentStatus::Suspended, AgentStatus::Active] {
            self.commit(async |tx| {
                tx.record_change(Change::Status(id));
                let cutoff = tx.revision().await?;
                agents::set_status(tx.conn(), id, status, cutoff, time(1)).await
            })
            .await;
        }
        assert_eq!(self.statuses_of(id, range).await, [AgentStatus::Suspended, AgentStatus::Active]);
    }

    async fn statuses_of(&self, agent: AgentId, range: RevisionRange) -> Vec<AgentStatus> {
        let until = self.current_revision().await;
        let changes = self.changed_data(RevisionRange { until, ..range }, None).await;
        let states = changes.into_iter().filter(|data| data.entry.change == Change::Status(agent));
        states.map(|data| data.agent.unwrap().status.status).collect()
    }

    async fn audiences_are_counted_and_deleted(&self, now: Timestamp) {
        let (id, service_id) = (agent().id, service().id);
        let read = async |audience| {
            let query = login_query(id, Some(audience));
            let basis = logins::read(self.read().await.conn(), &query, now).await.unwrap();
            basis.audience_recorded_until
        };
        let has_at_least =
            async |count, now| token_audiences::has_at_least(self.read().await.conn(), id, count, now).await.unwrap();
        let until = now.saturating_add(SECOND);
        assert_eq!(read(UNKNOWN_SERVICE).await, None);
        assert_eq!(read(service_id).await, Some(until));
        assert_eq!((has_at_least(1, now).await, has_at_least(2, now).await), (true, false));
        // If a shorter expiry is recorded, the audience keeps the longer one.
        self.commit(async |tx| token_audiences::record(tx.conn(), id, Some(service_id), time(1)).await).await;
        assert_eq!(read(service_id).await, Some(until));
        // At `later`, all audiences that expired until `now` can be deleted. `service_id` expires a second later, so it stays.
        let later = now.saturating_add(token_audiences::MAX_SIDECAR_LAG);
        self.commit(async |tx| {
            let (conn, expired) = (tx.conn(), token_audiences::EXPIRED);
            let oldest = expired.oldest_deletable(conn, time(0)).await?.unwrap();
            assert!(oldest <= later, "{oldest:?}");
            for until in [now.saturating_add(SECOND * 10), later] {
                while expired.delete(conn, time(0), until, 1).await? > 0 {}
            }
            let remaining = expired.oldest_deletable(conn, time(0)).await?;
            assert!(remaining.is_none_or(|oldest| oldest > later), "{remaining:?}");
            Ok(())
        })
        .await;
        assert_eq!(self.recipients_of(Change::Trust(OTHER_AGENT)).await, [Recipients::NoService]);
        assert_eq!(self.recipients_of(Change::Trust(agent().id)).await, [Recipients::Service(service().id)]);
    }
}
