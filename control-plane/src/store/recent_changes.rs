//! What changed recently, without the content: enough to know whether data in memory is still the content of the database.

use super::{Conn, StoreError, feed, query::params, row, statements::statements};
use crate::domain::change::{Change, FeedEntry, FeedPosition, RevisionRange};
use countersign_identity::{AgentId, Revision};
use sqlx::any::AnyRow;
use std::collections::HashSet;

/// Maximum number of agents with an unpublished trust score that [`find_state`] returns.
const MAX_UNPUBLISHED: usize = 64;

statements! { STATEMENTS:
    /// Reads one agent more than [`MAX_UNPUBLISHED`], to know whether there are more.
    FIND_STATE = concat!(
        "SELECT ", feed::position_columns!(), ", (SELECT COALESCE(string_agg(agent_id, ','), '') \
         FROM (SELECT agent_id FROM changed_trust_scores LIMIT $1 + 0) marked) AS unpublished FROM feed WHERE id = 1"
    );
    /// Returns each change once, however many services receive it: the recipient is a part of the change only for four facets
    /// (kinds of data).
    LIST_CHANGES = "SELECT DISTINCT revision, facet, subject, CASE WHEN facet IN ('roles', 'definitions', 'settings', 'token') \
         THEN COALESCE(recipient, '*') ELSE '*' END AS recipient FROM changes \
         WHERE revision > $1 AND revision <= $2 ORDER BY revision LIMIT $3 + 0";
}

/// The agents whose new trust score is not in the change feed yet. A background job publishes trust scores.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UnpublishedScores {
    /// Exactly these agents have unpublished scores.
    Of(HashSet<AgentId>),
    /// More agents have unpublished scores than we read, or we could not read them.
    Many,
}

impl UnpublishedScores {
    /// Whether the change feed may lack a trust score of the agent.
    pub fn may_include(&self, agent: AgentId) -> bool {
        match self {
            Self::Of(agents) => agents.contains(&agent),
            Self::Many => true,
        }
    }
}

/// Reads the position of the change feed, and the agents whose trust score the feed lacks, with one statement.
pub async fn find_state(conn: &mut Conn) -> Result<(FeedPosition, UnpublishedScores), StoreError> {
    let limit = i64::try_from(MAX_UNPUBLISHED + 1).unwrap_or(i64::MAX);
    let state_from_row = |row: &AnyRow| Ok((feed::position_from_row(row)?, row::get::<String>(row, "unpublished")?));
    let state = conn.find_row(FIND_STATE, params![limit], state_from_row).await?;
    let (position, text) = state.ok_or(StoreError::UnexpectedRowCount("feed"))?;
    let agents: Result<HashSet<_>, _> =
        text.split(',').filter(|agent| !agent.is_empty()).map(str::parse::<AgentId>).collect();
    let unpublished = match agents {
        Ok(agents) if agents.len() <= MAX_UNPUBLISHED => UnpublishedScores::Of(agents),
        // There are too many agents, or a row is invalid, which must not stop all requests.
        Ok(_) | Err(_) => UnpublishedScores::Many,
    };
    Ok((position, unpublished))
}

/// Lists the changes in a range of revisions; `None` if there are `limit` of them or more, or if this version cannot read one of them.
pub async fn list_changes(
    conn: &mut Conn,
    range: RevisionRange,
    limit: i64,
) -> Result<Option<Vec<(Change, Revision)>>, StoreError> {
    let change_from_row = |row: &AnyRow| {
        let (facet, subject, recipient): (String, String, String) =
            (row::get(row, "facet")?, row::get(row, "subject")?, row::get(row, "recipient")?);
        let recipient = Some(recipient.as_str()).filter(|recipient| *recipient != "*");
        let revision = row::revision(row, "revision")?;
        let FeedEntry { revision, change, recipients: _ } = feed::parse_entry(revision, &facet, &subject, recipient)?;
        Ok((change, revision))
    };
    let parameters = params![range.since, range.until, limit];
    match conn.list_rows::<_, Vec<_>>(LIST_CHANGES, parameters, change_from_row).await {
        Ok(changes) => {
            Ok(Some(changes).filter(|changes| i64::try_from(changes.len()).is_ok_and(|count| count < limit)))
        }
        Err(StoreError::Corrupt(_)) => Ok(None),
        Err(error) => Err(error),
    }
}
