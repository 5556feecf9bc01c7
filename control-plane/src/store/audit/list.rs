//! Lists audit entries, newest first.
//!
//! The audit log grows without a limit, and no index serves every filter. So we select entries by time and by one indexed column:
//! the chain, or else the agent, or else none. If the filter has further conditions, a page searches a limited number of these
//! entries, and the next page continues there.
//!
//! A search may end at an entry that does not match the filter, and the client sees the position of this entry. So we select by
//! chain before agent: the owner of a service must not learn of entries about an agent in other chains.

use super::entry_from_row;
use crate::{
    domain::{
        audit::{AuditAction, chain::AuditEntry},
        page::{ItemCount, ListPage, MAX_SEARCHED_ROWS, NumberThen, Page},
        service::ServiceOrDeployment,
    },
    store::{
        Conn, StoreError,
        query::{Parameter, params, text_or_empty},
        row,
        statements::statements,
    },
};
use countersign_identity::{AgentId, Timestamp};
use sqlx::any::AnyRow;

/// The entries in a range of times (from `$2` until `$3`, inclusive) that fulfil the condition for `$1`.
macro_rules! entries_in_range {
    ($at:literal, $columns:expr, $condition:literal) => {
        concat!("SELECT ", $columns, " FROM audit_entries WHERE ", $at, " >= $2 AND ", $at, " <= $3 AND ", $condition)
    };
}

/// Clocks can go backwards, so the sequence number decides only between entries of the same time.
macro_rules! newest_first {
    ($at:literal) => {
        concat!(" ORDER BY ", $at, " DESC, chain DESC, sequence DESC")
    };
}

/// The entries of [`entries_in_range`] after a position (`$4`, `$5`, `$6`).
macro_rules! entries_after {
    ($at:literal, $columns:expr, $condition:literal) => {
        concat!(
            entries_in_range!($at, $columns, $condition),
            " AND (",
            $at,
            ", chain, sequence) < ($4, $5, $6)",
            newest_first!($at)
        )
    };
}

macro_rules! count_entries {
    ($at:literal, $condition:literal) => {
        concat!(
            "SELECT CAST(COUNT(*) AS BIGINT) AS total FROM (",
            entries_in_range!($at, "1 AS one", $condition),
            " LIMIT $4 + 0) counted"
        )
    };
}

macro_rules! list_entries {
    ($at:literal, $condition:literal) => {
        concat!(entries_after!($at, columns!(), $condition), " LIMIT $7 + 0 OFFSET $8")
    };
}

/// The last entry that a search for matching entries reads, and the entry after it.
macro_rules! end_of_search {
    ($at:literal, $condition:literal) => {
        concat!(entries_after!($at, "at, chain, sequence", $condition), " LIMIT 2 OFFSET $7")
    };
}

macro_rules! count_matching {
    ($at:literal, $condition:literal) => {
        concat!(
            "SELECT CAST(COUNT(*) AS BIGINT) AS total FROM (",
            entries_in_range!($at, "agent_id, action", $condition),
            newest_first!($at),
            " LIMIT $4 + 0) searched WHERE ($5 = '' OR agent_id = $5) AND ($6 = '' OR action = $6)"
        )
    };
}

macro_rules! list_matching {
    ($at:literal, $condition:literal) => {
        concat!(
            "SELECT ",
            columns!(),
            " FROM (",
            entries_after!($at, columns!(), $condition),
            " LIMIT $7 + 0) searched WHERE ($8 = '' OR agent_id = $8) AND ($9 = '' OR action = $9)",
            newest_first!("at"),
            " LIMIT $10 + 0 OFFSET $11"
        )
    };
}

// The index of all entries has the expression `at + 0`. If it had the column `at`, PostgreSQL might use this index to read the
// entries of one chain, and read the entries of all other chains, too.
statements! { STATEMENTS:
    COUNT_ALL = count_entries!("(at + 0)", "$1 = ''");
    COUNT_OF_CHAIN = count_entries!("at", "chain = $1");
    COUNT_OF_AGENT = count_entries!("at", "agent_id = $1");
    LIST_ALL = list_entries!("(at + 0)", "$1 = ''");
    LIST_OF_CHAIN = list_entries!("at", "chain = $1");
    LIST_OF_AGENT = list_entries!("at", "agent_id = $1");
    END_IN_ALL = end_of_search!("(at + 0)", "$1 = ''");
    END_IN_CHAIN = end_of_search!("at", "chain = $1");
    END_OF_AGENT = end_of_search!("at", "agent_id = $1");
    COUNT_IN_ALL = count_matching!("(at + 0)", "$1 = ''");
    COUNT_IN_CHAIN = count_matching!("at", "chain = $1");
    COUNT_IN_AGENT = count_matching!("at", "agent_id = $1");
    MATCHING_IN_ALL = list_matching!("(at + 0)", "$1 = ''");
    MATCHING_IN_CHAIN = list_matching!("at", "chain = $1");
    MATCHING_OF_AGENT = list_matching!("at", "agent_id = $1");
}

/// The statements for one way to select entries.
struct Statements {
    count: &'static str,
    list: &'static str,
    end: &'static str,
    count_matching: &'static str,
    list_matching: &'static str,
}

const ALL: Statements = Statements {
    count: COUNT_ALL,
    list: LIST_ALL,
    end: END_IN_ALL,
    count_matching: COUNT_IN_ALL,
    list_matching: MATCHING_IN_ALL,
};

const OF_CHAIN: Statements = Statements {
    count: COUNT_OF_CHAIN,
    list: LIST_OF_CHAIN,
    end: END_IN_CHAIN,
    count_matching: COUNT_IN_CHAIN,
    list_matching: MATCHING_IN_CHAIN,
};

const OF_AGENT: Statements = Statements {
    count: COUNT_OF_AGENT,
    list: LIST_OF_AGENT,
    end: END_OF_AGENT,
    count_matching: COUNT_IN_AGENT,
    list_matching: MATCHING_OF_AGENT,
};

/// Selects audit entries. A field of the filter that is `None` matches all entries.
#[derive(Debug, Clone, Default)]
pub struct AuditFilter {
    /// If set, only entries of the chain.
    pub chain: Option<ServiceOrDeployment>,
    /// If set, only entries with the action.
    pub action: Option<AuditAction>,
    /// If set, only entries that concern the agent.
    pub agent: Option<AgentId>,
    /// Earliest time, inclusive.
    pub since: Option<Timestamp>,
    /// Latest time, exclusive.
    pub until: Option<Timestamp>,
}

/// The position of an audit entry in a list: its time in microseconds, then its sequence number, then the name of its chain.
pub type AuditPosition = NumberThen<NumberThen<String>>;

/// A filter as the parameters of statements.
struct Selection {
    statements: &'static Statements,
    /// The chain or the agent that the statements select, or empty.
    of: String,
    /// The agent and the action that the entries must match in addition, or empty.
    matching: [String; 2],
    /// Earliest time, inclusive.
    earliest: i64,
    /// Latest time, inclusive.
    latest: i64,
}

impl Selection {
    fn new(filter: &AuditFilter) -> Self {
        let AuditFilter { chain, action, agent, since, until } = filter;
        let (agent, action) = (text_or_empty(*agent), text_or_empty(action.map(AuditAction::as_str)));
        let (statements, of, agent) = match chain {
            Some(chain) => (&OF_CHAIN, chain.audit_chain(), agent),
            None if agent.is_empty() => (&ALL, String::new(), agent),
            None => (&OF_AGENT, agent, String::new()),
        };
        let latest = until.map_or(i64::MAX, |until| until.micros().saturating_sub(1));
        let earliest = since.map_or(i64::MIN, Timestamp::micros);
        Self { statements, of, matching: [agent, action], earliest, latest }
    }

    /// Whether the statements select exactly the entries of the filter.
    fn is_complete(&self) -> bool {
        self.matching.iter().all(String::is_empty)
    }

    /// The parameters of [`entries_in_range`].
    fn range(&self) -> [Parameter; 3] {
        params![self.of, self.earliest, self.latest]
    }

    /// The parameters of [`entries_after`].
    fn range_after(&self, after: Option<&AuditPosition>) -> [Parameter; 6] {
        let (at, chain, sequence) = match after {
            None => (i64::MAX, "", 0),
            Some(NumberThen { number, then }) => (*number, then.then.as_str(), then.number),
        };
        // We also end the range of times at the time of the position. Otherwise, a planner may read all earlier pages again.
        params![self.of, self.earliest, self.latest.min(at), at, chain, sequence]
    }

    /// The further parameters of the statements that search for matching entries.
    fn searched_and_matching(&self) -> [Parameter; 3] {
        let [agent, action] = &self.matching;
        params![MAX_SEARCHED_ROWS, agent, action]
    }

    /// The position at which a page that begins after `after` stops its search for matching entries, and the next page goes on.
    /// `None` if the page can search all entries.
    async fn end_of_search(
        &self,
        conn: &mut Conn,
        after: Option<&AuditPosition>,
    ) -> Result<Option<AuditPosition>, StoreError> {
        let parameters = self.range_after(after).into_iter().chain(params![MAX_SEARCHED_ROWS - 1]);
        let ends: Vec<_> = conn.list_rows(self.statements.end, parameters, position_from_row).await?;
        // The second row is the first entry that this page does not search. If there is no second row, the page can search all.
        Ok(<[_; 2]>::try_from(ends).ok().map(|[last, _]| last))
    }

    /// Counts the entries of the filter. `counted_until`: where the count stops, if it cannot search all entries.
    async fn count(&self, conn: &mut Conn, counted_until: Option<&AuditPosition>) -> Result<ItemCount, StoreError> {
        if self.is_complete() {
            return conn.count_items(self.statements.count, self.range()).await;
        }
        let parameters = self.range().into_iter().chain(self.searched_and_matching());
        let count = conn.read_row(self.statements.count_matching, parameters, row::total_count).await?;
        Ok(ItemCount { count, is_lower_bound: counted_until.is_some() })
    }

    /// The statement that lists the entries after a position, and its parameters.
    fn listing(&self, after: Option<&AuditPosition>) -> (&'static str, Vec<Parameter>) {
        let range = self.range_after(after);
        if self.is_complete() {
            (self.statements.list, range.into())
        } else {
            (self.statements.list_matching, range.into_iter().chain(self.searched_and_matching()).collect())
        }
    }
}

fn position_from_row(row: &AnyRow) -> Result<AuditPosition, StoreError> {
    let then = NumberThen { number: row::get(row, "sequence")?, then: row::get(row, "chain")? };
    Ok(NumberThen { number: row::get(row, "at")?, then })
}

/// Lists audit entries that match a filter, newest first.
pub async fn list(
    conn: &mut Conn,
    filter: &AuditFilter,
    page: &Page<AuditPosition>,
) -> Result<ListPage<AuditEntry, AuditPosition>, StoreError> {
    let selection = Selection::new(filter);
    // The count begins at the newest entry, and the search of the page at its own first entry, so they end at different entries.
    let (mut counted_until, mut searched_until) = (None, None);
    if !selection.is_complete() {
        counted_until = selection.end_of_search(conn, None).await?;
        searched_until = match &page.after {
            None => counted_until.clone(),
            after => selection.end_of_search(conn, after.as_ref()).await?,
        };
    }
    let total = selection.count(conn, counted_until.as_ref()).await?;
    let (sql, parameters) = selection.listing(page.after.as_ref());
    let position = |entry: &AuditEntry| NumberThen {
        number: entry.at.micros(),
        then: NumberThen { number: entry.sequence, then: entry.chain.clone() },
    };
    let list = conn.list_page(sql, parameters, page, total, entry_from_row, position).await?;
    Ok(ListPage { next: list.next.or(searched_until), ..list })
}
