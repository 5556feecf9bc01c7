//! Reads what has changed recently, without the content of the changes.

use super::{agent, service};
use crate::{
    domain::change::{Change, RevisionRange},
    store::{
        conformance::StoreFixture,
        recent_changes::{self, UnpublishedScores},
        token_audiences, trust,
    },
};
use countersign_identity::{AgentId, Revision, ServiceId, SessionId, TokenId};
use sqlx::AssertSqlSafe;
use std::time::Duration;

/// Number of services that receive changes of the agent.
const AUDIENCES: u128 = 20;

impl StoreFixture {
    pub async fn recent_changes_are_found(&self) {
        let (agent, service, since) = (agent().id, service().id, self.current_revision().await);
        let expected = [
            Change::Keys,
            Change::ServiceSettings(service),
            Change::Definitions(service),
            Change::Roles(agent, service),
            Change::Trust(agent),
            Change::Status(agent),
            Change::Session(SessionId::from_bits(7)),
            Change::Token(TokenId::from_bits(7), None),
            Change::Token(TokenId::from_bits(8), Some(service)),
        ];
        let until = self
            .commit(async |tx| {
                for audience in 0..AUDIENCES {
                    let (now, audience) = (tx.now(), Some(ServiceId::from_bits(1000 + audience)));
                    let expires_at = now.saturating_add(Duration::from_mins(1));
                    token_audiences::record(tx.conn(), agent, audience, expires_at).await?;
                }
                for change in &expected {
                    tx.record_change(*change);
                }
                tx.revision().await
            })
            .await;
        let range = RevisionRange { since, until };
        let mut found = self.list(range, 100).await.unwrap();
        found.sort();
        let mut expected: Vec<_> = expected.into_iter().map(|change| (change, until)).collect();
        expected.sort();
        assert_eq!(found, expected, "each change is found once, however many services receive it");
        let count = i64::try_from(expected.len()).unwrap();
        assert!(self.list(range, count + 1).await.is_some());
        assert!(self.list(range, count).await.is_none());
        assert_eq!(self.list(RevisionRange { since: until, until }, 100).await, Some(Vec::new()));
        self.execute_sql(&format!(
            "UPDATE changes SET facet = 'new' WHERE facet = 'keys' AND revision = {}",
            until.number()
        ))
        .await;
        assert!(self.list(range, 100).await.is_none(), "a change of a later version is not known");
        self.execute_sql("UPDATE changes SET facet = 'keys' WHERE facet = 'new'").await;
        self.unpublished_scores_are_found(until).await;
    }

    async fn unpublished_scores_are_found(&self, revision: Revision) {
        let is_marked = async |agent: AgentId| self.find_unpublished(revision).await.may_include(agent);
        let id = |number: u128| AgentId::from_bits((1 << 64) + number);
        self.execute_sql("DELETE FROM changed_trust_scores").await;
        assert!(!is_marked(id(1)).await);
        for number in 1..=65 {
            self.commit(async |tx| trust::mark_changed(tx.conn(), id(number)).await).await;
            assert!(is_marked(id(number)).await && is_marked(id(1)).await);
            assert_eq!(is_marked(id(0)).await, number > 64, "more than 64 agents count as all");
        }
        self.execute_sql("DELETE FROM changed_trust_scores").await;
        self.execute_sql("INSERT INTO changed_trust_scores (agent_id) VALUES ('x')").await;
        assert!(is_marked(id(0)).await, "an invalid id counts as all agents");
        self.execute_sql("DELETE FROM changed_trust_scores").await;
    }

    async fn list(&self, range: RevisionRange, limit: i64) -> Option<Vec<(Change, Revision)>> {
        let mut read = self.first.read().await.unwrap();
        recent_changes::list_changes(read.conn(), range, limit).await.unwrap()
    }

    async fn find_unpublished(&self, revision: Revision) -> UnpublishedScores {
        let timeout = Duration::from_secs(4);
        let (position, unpublished) = self.first.read_one_for(timeout, recent_changes::find_state).await.unwrap();
        assert_eq!(position.revision, revision);
        unpublished
    }

    async fn execute_sql(&self, sql: &str) {
        self.commit(async |tx| {
            tx.conn().execute(AssertSqlSafe(sql.to_owned())).await?;
            Ok(())
        })
        .await;
    }
}
