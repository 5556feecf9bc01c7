//! The audit log: entries are appended in the transaction of the action that they record.

use super::{Conn, StoreError, row, statements::statements};
use crate::domain::{
    audit::{
        AuditAction, AuditChain, Initiator, NewAuditEntry,
        chain::{AuditEntry, AuditKeys, BrokenChain, ChainFault, ChainHead, ChainVerifier},
    },
    page::{ListPage, Page},
};
use countersign_identity::{AgentId, ServiceId, Timestamp};
use sqlx::{AssertSqlSafe, any::AnyRow};

macro_rules! columns {
    () => {
        "chain, sequence, at, act, actor_kind, actor_issuer, actor_id, address, request_id, agent_id, object_kind, \
         object_id, details, previous, hash, mac"
    };
}

statements! { STATEMENTS:
    INSERT = concat!(
        "INSERT INTO audit_links (", columns!(), ") VALUES \
         ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)"
    );
    LOCK_HEAD = "INSERT INTO audit_heads (chain, length, hash, mac) VALUES ($1, 0, '', '') \
         ON CONFLICT (chain) DO UPDATE SET length = audit_heads.length RETURNING length, hash, mac";
    UPDATE_HEAD = "UPDATE audit_heads SET length = $1, hash = $2, mac = $3 WHERE chain = $4";
    FIND_HEAD = "SELECT length, hash, mac FROM audit_heads WHERE chain = $1";
    FIND_LAST = "SELECT sequence AS length, hash, 'lost' AS mac FROM audit_links WHERE chain = $1 \
         ORDER BY sequence DESC LIMIT 1";
    ANY = "SELECT chain FROM audit_heads WHERE length <> 0 UNION ALL SELECT chain FROM audit_links LIMIT 1";
    SERVICES_WITHOUT_CHAIN =
        "SELECT id FROM services WHERE id NOT IN (SELECT chain FROM audit_heads) ORDER BY id";
    NEWEST_TIME = "SELECT MAX(at) AS at FROM audit_links";
    CHAINS = "SELECT $1 AS chain UNION SELECT id FROM services UNION SELECT chain FROM audit_heads \
         UNION SELECT DISTINCT chain FROM audit_links ORDER BY 1";
    BATCH = concat!(
        "SELECT ", columns!(), " FROM audit_links WHERE chain = $1 AND sequence > $2 ORDER BY sequence LIMIT $3"
    );
    COUNT_FILTERED = "SELECT CAST(COUNT(*) AS BIGINT) AS total FROM audit_links WHERE at >= $1 AND at < $2";
    LIST_FILTERED = concat!("SELECT ", columns!(), " FROM audit_links WHERE at >= $1 AND at < $2");
}

/// Number of entries read at once when a chain is verified.
const BATCH_SIZE: i64 = 500;

/// MAC of a head that was rebuilt from the entries: never valid, so verification of the chain fails.
const INVALID_MAC: &str = "lost";

/// Appends an entry to its chain. Locks the head of the chain until the transaction ends, which serializes the writers of
/// one chain.
pub async fn append(
    conn: &mut Conn,
    keys: &AuditKeys,
    entry: &NewAuditEntry,
    by: &Initiator,
    now: Timestamp,
) -> Result<(), StoreError> {
    let chain = entry.chain.to_string();
    let (head, last) = (lock_head(conn, &chain).await?, find_last(conn, &chain).await?);
    let valid = head.filter(|head| head.length >= last.length && keys.is_valid_head(&chain, head));
    if valid.is_none() {
        tracing::error!(chain, "the end of this audit chain was changed: run `audit verify`");
    }
    let before = valid.unwrap_or(last);
    let (entry, head) = keys.append(&before, entry, by, now);
    insert(conn, &entry).await?;
    let query = sqlx::query(UPDATE_HEAD).bind(head.length).bind(head.hash).bind(head.mac).bind(chain);
    if query.execute(conn).await?.rows_affected() == 1 { Ok(()) } else { Err(StoreError::Rows("append_audit")) }
}

/// Locks the head of a chain, and creates it if there is none. `None` if the row is unreadable.
async fn lock_head(conn: &mut Conn, chain: &str) -> Result<Option<ChainHead>, StoreError> {
    Ok(read_head(&sqlx::query(LOCK_HEAD).bind(chain).fetch_one(conn).await?).ok())
}

/// A head rebuilt from the last entry, with an invalid MAC. A chain with a wrong head is continued from here and stays
/// invalid.
async fn find_last(conn: &mut Conn, chain: &str) -> Result<ChainHead, StoreError> {
    let row = sqlx::query(FIND_LAST).bind(chain).fetch_optional(conn).await?;
    let empty = || ChainHead { mac: INVALID_MAC.to_owned(), ..ChainHead::default() };
    Ok(row.as_ref().map(read_head).transpose()?.unwrap_or_else(empty))
}

async fn insert(conn: &mut Conn, entry: &AuditEntry) -> Result<(), StoreError> {
    sqlx::query(INSERT)
        .bind(&entry.chain)
        .bind(entry.sequence)
        .bind(entry.at.micros())
        .bind(&entry.action)
        .bind(&entry.actor_kind)
        .bind(entry.actor_issuer.as_deref())
        .bind(entry.actor_id.as_deref())
        .bind(entry.address.as_deref())
        .bind(entry.request_id.as_deref())
        .bind(entry.agent.as_deref())
        .bind(entry.object_kind.as_deref())
        .bind(entry.object_id.as_deref())
        .bind(&entry.details)
        .bind(&entry.previous)
        .bind(&entry.hash)
        .bind(&entry.mac)
        .execute(conn)
        .await?;
    Ok(())
}

/// Whether any entry was ever written, and locks the head of the chain of the deployment, so that two replicas cannot both
/// start the audit log. All chains count: if the chain of the deployment alone is missing, it was removed.
pub async fn lock_and_check_started(conn: &mut Conn) -> Result<bool, StoreError> {
    let deployment = AuditChain::Deployment.to_string();
    let head = lock_head(conn, &deployment).await?;
    let started = sqlx::query(ANY).fetch_optional(conn).await?.is_some();
    if started && head == Some(ChainHead::default()) {
        tracing::error!(chain = deployment, "this audit chain was removed: run `audit verify`");
    }
    Ok(started)
}

/// Services without an audit chain.
pub async fn services_without_chain(conn: &mut Conn) -> Result<Vec<ServiceId>, StoreError> {
    sqlx::query(SERVICES_WITHOUT_CHAIN).fetch_all(conn).await?.iter().map(|row| row::parse(row, "id")).collect()
}

/// Time of the newest entry; `None` if there are no entries.
pub async fn newest_time(conn: &mut Conn) -> Result<Option<Timestamp>, StoreError> {
    row::optional_timestamp(&sqlx::query(NEWEST_TIME).fetch_one(conn).await?, "at")
}

/// Names of all chains: those that must exist, and those of which any row exists.
pub async fn chains(conn: &mut Conn) -> Result<Vec<String>, StoreError> {
    let rows = sqlx::query(CHAINS).bind(AuditChain::Deployment.to_string()).fetch_all(conn).await?;
    rows.iter().map(|row| row::get(row, "chain")).collect()
}

/// Selects entries. Fields that are `None` match all entries.
#[derive(Debug, Clone, Default)]
pub struct AuditFilter {
    /// Only entries of this chain.
    pub chain: Option<AuditChain>,
    /// Only this action.
    pub action: Option<AuditAction>,
    /// Only entries about this agent.
    pub agent: Option<AgentId>,
    /// Earliest time, inclusive.
    pub since: Option<Timestamp>,
    /// Latest time, exclusive.
    pub until: Option<Timestamp>,
}

/// Entries that match a filter, newest first.
pub async fn list(conn: &mut Conn, filter: &AuditFilter, page: Page) -> Result<ListPage<AuditEntry>, StoreError> {
    let AuditFilter { chain, action, agent, since, until } = filter;
    let filters = [
        ("chain", chain.map(|chain| chain.to_string())),
        ("act", action.map(|action| action.as_str().to_owned())),
        ("agent_id", agent.map(|agent| agent.to_string())),
    ];
    let filters: Vec<_> = filters.into_iter().filter_map(|(column, value)| Some((column, value?))).collect();
    let columns: Vec<_> = filters.iter().map(|(column, _)| *column).collect();
    let (count, list) = list_statements(&columns);
    let (least, most) = (since.map_or(i64::MIN, Timestamp::micros), until.map_or(i64::MAX, Timestamp::micros));
    let query = |sql: String| {
        let query = sqlx::query(AssertSqlSafe(sql)).bind(least).bind(most);
        filters.iter().fold(query, |query, (_, value)| query.bind(value.clone()))
    };
    let total = row::total(&query(count).fetch_one(&mut *conn).await?)?;
    let rows = query(list).bind(page.limit).bind(page.offset).fetch_all(conn).await?;
    Ok(ListPage { items: rows.iter().map(read_entry).collect::<Result<_, _>>()?, total })
}

/// The statements that count and list the entries for which these columns have given values. A condition such as
/// `$3 = '' OR chain = $3` in a single statement would keep the engines from using the indexes.
fn list_statements(columns: &[&str]) -> (String, String) {
    let conditions: Vec<_> = (3..).zip(columns).map(|(number, column)| format!(" AND {column} = ${number}")).collect();
    let conditions = conditions.concat();
    // Clocks can go backwards: within a chain, only the sequence is the order of writing.
    let order = if columns.contains(&"chain") { "sequence DESC" } else { "at DESC, chain DESC, sequence DESC" };
    let (limit, offset) = (columns.len() + 3, columns.len() + 4);
    let page = format!(" ORDER BY {order} LIMIT ${limit} OFFSET ${offset}");
    (format!("{COUNT_FILTERED}{conditions}"), format!("{LIST_FILTERED}{conditions}{page}"))
}

/// All statements that [`list_statements`] can build, for the conformance tests.
#[cfg(test)]
pub(super) fn composed_statements() -> Vec<String> {
    let columns = ["chain", "act", "agent_id"];
    let subsets = (0..1 << columns.len()).map(|bits: usize| {
        let chosen = columns.iter().enumerate().filter(|(position, _)| bits & (1 << position) != 0);
        chosen.map(|(_, column)| *column).collect::<Vec<_>>()
    });
    subsets.map(|columns| list_statements(&columns)).flat_map(|(count, list)| [count, list]).collect()
}

/// Verifies a chain from its first entry and passes each valid entry to `visit`. Returns the head of the chain, or its
/// first invalid entry.
pub async fn verify_chain(
    conn: &mut Conn,
    keys: &AuditKeys,
    chain: &str,
    mut visit: impl FnMut(&AuditEntry),
) -> Result<Result<ChainHead, BrokenChain>, StoreError> {
    let mut verifier = ChainVerifier::new(keys, chain);
    loop {
        let (length, rows) = (verifier.length(), read_batch(conn, chain, verifier.length()).await?);
        for row in &rows {
            let result = read_entry(row).map_err(|_| verifier.broken(ChainFault::Unreadable)).and_then(|entry| {
                verifier.verify_next(&entry)?;
                visit(&entry);
                Ok(())
            });
            if let Err(broken) = result {
                return Ok(Err(broken));
            }
        }
        if verifier.length() == length {
            break;
        }
    }
    let head = sqlx::query(FIND_HEAD).bind(chain).fetch_optional(conn).await?.and_then(|row| read_head(&row).ok());
    Ok(verifier.finish(head.as_ref()).map(|()| head.unwrap_or_default()))
}

/// The entries after the first `verified`. The first batch includes entries with an invalid sequence below 1.
async fn read_batch(conn: &mut Conn, chain: &str, verified: i64) -> Result<Vec<AnyRow>, StoreError> {
    let after = if verified == 0 { i64::MIN } else { verified };
    Ok(sqlx::query(BATCH).bind(chain).bind(after).bind(BATCH_SIZE).fetch_all(conn).await?)
}

fn read_head(row: &AnyRow) -> Result<ChainHead, StoreError> {
    Ok(ChainHead { length: row::get(row, "length")?, hash: row::get(row, "hash")?, mac: row::get(row, "mac")? })
}

fn read_entry(row: &AnyRow) -> Result<AuditEntry, StoreError> {
    Ok(AuditEntry {
        chain: row::get(row, "chain")?,
        sequence: row::get(row, "sequence")?,
        at: row::timestamp(row, "at")?,
        action: row::get(row, "act")?,
        actor_kind: row::get(row, "actor_kind")?,
        actor_issuer: row::get(row, "actor_issuer")?,
        actor_id: row::get(row, "actor_id")?,
        address: row::get(row, "address")?,
        request_id: row::get(row, "request_id")?,
        agent: row::get(row, "agent_id")?,
        object_kind: row::get(row, "object_kind")?,
        object_id: row::get(row, "object_id")?,
        details: row::get(row, "details")?,
        previous: row::get(row, "previous")?,
        hash: row::get(row, "hash")?,
        mac: row::get(row, "mac")?,
    })
}
