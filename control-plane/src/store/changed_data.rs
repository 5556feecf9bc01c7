//! Reads entries of the change feed together with the content of the changed data.
//!
//! One statement reads the entries with the state of agents, and returns them as one text. With rows instead, the database driver
//! would convert each column of each row, which takes several times as long as the query. With a million entries, a sidecar would
//! get its view too late. For the same reason, an entry contains the state of its agent. `changed_roles` then reads the roles, once
//! for each role holder however often they have changed. If there are too many roles, the remaining entries belong to the next
//! read.
//!
//! Invariant: the content of an entry is never older than the revision of the entry.

use super::{
    Conn, StoreError,
    agents::AgentState,
    changed_roles::{self, RoleHolder},
    feed::{self, RecipientFilter},
    query::params,
    row,
    statements::statements,
};
use crate::domain::{
    agent::parse_status,
    change::{Change, FeedEntry, RevisionRange},
};
use countersign_identity::{AgentId, Revision, RoleGrant, StatusWithCutoff, TrustScore};
use sqlx::any::AnyRow;
use std::{
    collections::{HashMap, HashSet},
    str::{FromStr, Split},
    sync::Arc,
};

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
/// No other index fits, so entries of other recipients are never read, whatever the statistics of the database say.
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

/// Joins selected entries to one text: entries end with `;`, and their fields with `|`.
macro_rules! as_text {
    ($($entries:expr),+) => {
        concat!(
            "SELECT COALESCE(string_agg(line, ''), '') AS entries FROM (\
             SELECT c.revision || '|' || c.position || '|' || c.facet || '|' || c.subject || '|' || COALESCE(c.recipient, '*') \
             || '|' || COALESCE(c.agent_state, '||') || '|;' AS line FROM (", $($entries,)+ ") c) lines"
        )
    };
}

statements! { STATEMENTS:
    READ_ALL = as_text!(
        "SELECT ", entry_columns!(), " FROM changes WHERE revision > $1 AND revision <= $2 ORDER BY revision, position LIMIT $3 + 0"
    );
    /// The second recipient is an empty text for unbound tokens (tokens for no service), or NULL to skip their entries.
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
    /// If the trust score or status of an agent changed, and the agent exists: its state at the revision of the entry or later.
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
    let mut entries: Vec<_> =
        text.split_terminator(';').map(|line| parse_entry(line.split('|'))).collect::<Result<_, _>>()?;
    // The database may join the entries to one text in any order, so we sort them.
    entries.sort_unstable_by_key(|(position, data)| (data.entry.revision, *position));
    Ok(entries.into_iter().map(|(_, data)| data).collect())
}

/// Parses an entry, and its position among the entries of its revision.
fn parse_entry(mut fields: Split<'_, char>) -> Result<(i64, ChangedData), StoreError> {
    let mut next = |column: &'static str| fields.next().ok_or(StoreError::Corrupt(column));
    let revision = Revision::new(parse("revision", next("revision")?)?);
    let position = parse("position", next("position")?)?;
    let (facet, subject, recipient) = (next("facet")?, next("subject")?, next("recipient")?);
    let recipient = if recipient == "*" { None } else { Some(recipient) };
    let entry = feed::parse_entry(revision, facet, subject, recipient)?;
    let (trust, status, cutoff) = (next("trust")?, next("status")?, next("cutoff")?);
    let agent = if status.is_empty() { None } else { Some(parse_state(subject, [trust, status, cutoff])?) };
    Ok((position, ChangedData { entry, agent, grants: Arc::default() }))
}

fn parse_state(agent: &str, [trust, status, cutoff]: [&str; 3]) -> Result<AgentState, StoreError> {
    Ok(AgentState {
        agent: parse::<AgentId>("subject", agent)?,
        trust: TrustScore::from_hundredths(parse("trust", trust)?).map_err(|_| StoreError::Corrupt("trust"))?,
        status: StatusWithCutoff {
            status: parse_status(status).ok_or(StoreError::Corrupt("status"))?,
            cutoff: Revision::new(parse("cutoff", cutoff)?),
        },
    })
}

pub(super) fn parse<T: FromStr>(column: &'static str, text: &str) -> Result<T, StoreError> {
    text.parse().map_err(|_| StoreError::Corrupt(column))
}
