//! Reads entries of the change feed together with the content of the changed data.
//!
//! One statement reads the entries and returns them as one text, because the database driver converts each column of each row,
//! which takes several times as long as the query: with a million entries, a sidecar would get its view too late. To save a second
//! query, an entry also contains the state of its agent (trust score, status and cutoff) at the revision of the entry. Roles are
//! not in the entries: `changed_roles` reads them, once for each role holder, however often they have changed. If there are too
//! many roles, the remaining entries belong to the next read.
//!
//! Invariant: the content of an entry is never older than the revision of the entry.

mod text;

use super::{
    Conn, StoreError,
    agents::AgentState,
    changed_roles::{self, RoleHolder},
    feed::RecipientFilter,
    query::params,
    row,
    statements::statements,
};
use crate::domain::change::{Change, FeedEntry, RevisionRange};
use countersign_identity::{Revision, RoleGrant};
use sqlx::any::AnyRow;
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};
use text::{as_text, parse_entries};

pub(super) use text::parse_field;

/// When a read has found this many roles, it does not look for the roles of the next [`changed_roles::MAX_HOLDERS`] role holders.
/// This bounds the time and the memory of a read.
const MAX_GRANTS: usize = 16_384;

/// The columns that a selection of entries must have.
macro_rules! entry_columns {
    () => {
        "revision, position, facet, subject, recipient, agent_state"
    };
}

/// Selects the entries of one recipient in a range of revisions, by the index `changes_of_recipient`, whose expressions it repeats.
/// The index of the primary key does not have `revision + 0`, so entries of other recipients are never read.
macro_rules! entries_of {
    ($recipient:literal) => {
        concat!(
            "SELECT * FROM (SELECT ",
            entry_columns!(),
            " FROM changes WHERE COALESCE(recipient, '*') = ",
            $recipient,
            " AND revision + 0 > $1 AND revision + 0 <= $2 ORDER BY revision + 0, position LIMIT $3 + 0) selected"
        )
    };
}

statements! { STATEMENTS:
    READ_ALL = as_text!(
        "SELECT ", entry_columns!(), " FROM changes WHERE revision > $1 AND revision <= $2 ORDER BY revision, position LIMIT $3 + 0"
    );
    /// `$4` is the service. `$5` is an empty text for unbound tokens (tokens for no service), or NULL to skip their entries. `'*'`
    /// are the entries for all services, whose column `recipient` is NULL.
    READ_FOR_RECIPIENTS = as_text!(
        "SELECT * FROM (",
        entries_of!("$4"), " UNION ALL ", entries_of!("$5"), " UNION ALL ", entries_of!("'*'"),
        ") merged ORDER BY revision, position LIMIT $3 + 0"
    );
}

/// How many entries one read returns at most.
#[derive(Debug, Clone, Copy)]
pub struct ReadLimit(i64);

impl ReadLimit {
    /// At most this number of entries. But a read never splits a revision, so it can return more.
    pub const fn entries(count: u32) -> Self {
        // We read at least one entry, so that each read makes progress.
        Self(if count == 0 { 1 } else { count as i64 })
    }

    const NONE: Self = Self(i64::MAX);
}

/// An entry of the change feed with the content of the changed data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangedData {
    pub entry: FeedEntry,
    /// If the trust score or status of an agent changed, and the agent was not deleted: its state at the revision of the entry.
    pub agent: Option<AgentState>,
    /// If the roles of an agent at a service changed: its roles there, at the time of the read. Expired roles are among them,
    /// because the sidecar compares the expiry with its own clock.
    pub grants: Arc<[RoleGrant]>,
}

/// All changes of some recipients in a range of revisions.
#[derive(Debug)]
pub struct ChangedRange {
    /// The changes, in commit order.
    pub changes: Vec<ChangedData>,
    /// The inclusive upper bound of the range: the requested bound, or a lower one if there are too many changes or roles.
    pub until: Revision,
}

/// Reads the first changes within a range of revisions, in commit order. Without a filter, reads the changes of all recipients.
pub async fn read(
    conn: &mut Conn,
    range: RevisionRange,
    filter: Option<RecipientFilter>,
    limit: ReadLimit,
) -> Result<ChangedRange, StoreError> {
    let changed = read_without_roles(conn, range, filter, limit).await?;
    add_roles(conn, changed).await
}

async fn read_without_roles(
    conn: &mut Conn,
    range: RevisionRange,
    filter: Option<RecipientFilter>,
    limit: ReadLimit,
) -> Result<ChangedRange, StoreError> {
    let mut changes = read_entries(conn, range, filter, limit).await?;
    let until = match changes.last() {
        Some(last) if i64::try_from(changes.len()).is_ok_and(|count| count >= limit.0) => last.entry.revision,
        _ => return Ok(ChangedRange { changes, until: range.until }),
    };
    // The limit may have cut the entries of the last revision, so we leave all of them to the next read.
    changes.retain(|data| data.entry.revision < until);
    if let Some(last) = changes.last() {
        return Ok(ChangedRange { until: last.entry.revision, changes });
    }
    let changes = read_entries(conn, RevisionRange { until, ..range }, filter, ReadLimit::NONE).await?;
    Ok(ChangedRange { changes, until })
}

/// Reads the roles of the role holders among the changes. Drops the first change whose roles we do not read, and all later ones.
async fn add_roles(conn: &mut Conn, changed: ChangedRange) -> Result<ChangedRange, StoreError> {
    let ChangedRange { mut changes, mut until } = changed;
    let HoldersInOrder { holders, of_first_revision } = HoldersInOrder::of(&changes);
    let (mut roles, mut count) = (HashMap::new(), 0);
    for next in holders.chunks(changed_roles::MAX_HOLDERS) {
        // We always read the first revision, so that each read makes progress.
        if roles.len() >= of_first_revision && count >= MAX_GRANTS {
            break;
        }
        for (holder, grants) in next.iter().zip(changed_roles::find(conn, next).await?) {
            count += grants.len();
            roles.insert(*holder, Arc::<[RoleGrant]>::from(grants));
        }
    }
    let mut first_without_roles = None;
    for data in &mut changes {
        let Change::Roles(agent, service) = data.entry.change else { continue };
        let Some(grants) = roles.get(&(agent, service)) else {
            first_without_roles = Some(data.entry.revision);
            break;
        };
        data.grants = Arc::clone(grants);
    }
    if let Some(revision) = first_without_roles {
        changes.retain(|data| data.entry.revision < revision);
        until = changes.last().ok_or(StoreError::Corrupt("revision"))?.entry.revision;
    }
    Ok(ChangedRange { changes, until })
}

/// The distinct role holders whose roles changed, in the order of their first change.
struct HoldersInOrder {
    holders: Vec<RoleHolder>,
    /// How many of these role holders have a change at the first revision.
    of_first_revision: usize,
}

impl HoldersInOrder {
    fn of(changes: &[ChangedData]) -> Self {
        let (mut known, mut holders, mut of_first_revision) = (HashSet::new(), Vec::new(), 0);
        let first_revision = changes.first().map(|data| data.entry.revision);
        for data in changes {
            let Change::Roles(agent, service) = data.entry.change else { continue };
            if known.insert((agent, service)) {
                holders.push((agent, service));
                of_first_revision += usize::from(first_revision == Some(data.entry.revision));
            }
        }
        Self { holders, of_first_revision }
    }
}

async fn read_entries(
    conn: &mut Conn,
    range: RevisionRange,
    filter: Option<RecipientFilter>,
    limit: ReadLimit,
) -> Result<Vec<ChangedData>, StoreError> {
    let RevisionRange { since, until } = range;
    let entries = |row: &AnyRow| row::get::<String>(row, "entries");
    let text = match filter {
        None => conn.read_row(READ_ALL, params![since, until, limit.0], entries).await?,
        Some(RecipientFilter { service, includes_unbound }) => {
            let parameters = params![since, until, limit.0, service, includes_unbound.then_some("")];
            conn.read_row(READ_FOR_RECIPIENTS, parameters, entries).await?
        }
    };
    let mut entries = parse_entries(&text)?;
    // The database may join the entries to one text in any order, so we sort them.
    entries.sort_unstable_by_key(|(position, data)| (data.entry.revision, *position));
    Ok(entries.into_iter().map(|(_, data)| data).collect())
}
