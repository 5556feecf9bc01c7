//! The chains of what was done: appended to in the transaction of the act, and read.

use super::{Conn, StoreError, row};
use crate::domain::{
    audit::{
        Act, Author, Chain, Entry,
        chain::{AuditKeys, Broken, Fault, Head, Link, Walk},
    },
    page::{Listed, Page},
};
use countersign_identity::{AgentId, ServiceId, Timestamp};
use sqlx::any::AnyRow;

const COLUMNS: &str = "chain, sequence, at, act, actor_kind, actor_issuer, actor_id, address, request_id, agent_id, \
                       object_kind, object_id, details, previous, hash, mac";

/// Links that are read at once when a chain is checked.
const STRIDE: i64 = 500;

/// Appends an act to its chain. The row of the head is locked until the transaction ends, so acts of one chain come one
/// after the other.
pub async fn append(
    conn: &mut Conn,
    keys: &AuditKeys,
    entry: &Entry,
    by: &Author,
    now: Timestamp,
) -> Result<(), StoreError> {
    let chain = entry.chain.to_string();
    let (kept, last) = (lock(conn, &chain).await?, last(conn, &chain).await?);
    let whole = kept.filter(|kept| kept.length >= last.length && keys.sealed(&chain, kept));
    if whole.is_none() {
        tracing::error!(chain, "the end of this audit chain is not as it was written: run `audit verify`");
    }
    let before = whole.unwrap_or(last);
    let (link, head) = keys.append(&before, entry, by, now);
    insert(conn, &link).await?;
    let sql = "UPDATE audit_heads SET length = $1, hash = $2, mac = $3 WHERE chain = $4";
    let query = sqlx::query(sql).bind(head.length).bind(head.hash).bind(head.mac).bind(chain);
    if query.execute(conn).await?.rows_affected() == 1 { Ok(()) } else { Err(StoreError::Rows("append_audit")) }
}

/// Locks the head of a chain, which is made if there is none; gives it if it can be read.
async fn lock(conn: &mut Conn, chain: &str) -> Result<Option<Head>, StoreError> {
    let sql = "INSERT INTO audit_heads (chain, length, hash, mac) VALUES ($1, 0, '', '') \
               ON CONFLICT (chain) DO UPDATE SET length = audit_heads.length RETURNING length, hash, mac";
    Ok(read_head(&sqlx::query(sql).bind(chain).fetch_one(conn).await?).ok())
}

/// The end of a chain as its links have it. A chain whose head is not where it ends is followed from there, and
/// stays without a head that is sealed.
async fn last(conn: &mut Conn, chain: &str) -> Result<Head, StoreError> {
    let sql = "SELECT sequence AS length, hash, 'lost' AS mac FROM audit_links WHERE chain = $1 ORDER BY sequence DESC LIMIT 1";
    let last = sqlx::query(sql).bind(chain).fetch_optional(conn).await?;
    let none = || Head { mac: "lost".to_owned(), ..Head::default() };
    Ok(last.as_ref().map(read_head).transpose()?.unwrap_or_else(none))
}

async fn insert(conn: &mut Conn, link: &Link) -> Result<(), StoreError> {
    let sql = sqlx::AssertSqlSafe(format!(
        "INSERT INTO audit_links ({COLUMNS}) VALUES \
         ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)"
    ));
    sqlx::query(sql)
        .bind(&link.chain)
        .bind(link.sequence)
        .bind(link.at.micros())
        .bind(&link.act)
        .bind(&link.actor_kind)
        .bind(link.actor_issuer.as_deref())
        .bind(link.actor_id.as_deref())
        .bind(link.address.as_deref())
        .bind(link.request_id.as_deref())
        .bind(link.agent.as_deref())
        .bind(link.object_kind.as_deref())
        .bind(link.object_id.as_deref())
        .bind(&link.details)
        .bind(&link.previous)
        .bind(&link.hash)
        .bind(&link.mac)
        .execute(conn)
        .await?;
    Ok(())
}

/// Whether anything was ever recorded, of whatever chain: one that is missing beside others was taken away. Until the
/// transaction ends, nobody else begins.
pub async fn began(conn: &mut Conn) -> Result<bool, StoreError> {
    let deployment = Chain::Deployment.to_string();
    let head = lock(conn, &deployment).await?;
    let sql = "SELECT chain FROM audit_heads WHERE length <> 0 UNION ALL SELECT chain FROM audit_links LIMIT 1";
    let began = sqlx::query(sql).fetch_optional(conn).await?.is_some();
    if began && head == Some(Head::default()) {
        tracing::error!(chain = deployment, "this audit chain was taken away: run `audit verify`");
    }
    Ok(began)
}

/// The services of which nothing was recorded.
pub async fn unrecorded(conn: &mut Conn) -> Result<Vec<ServiceId>, StoreError> {
    let sql = "SELECT id FROM services WHERE id NOT IN (SELECT chain FROM audit_heads) ORDER BY id";
    sqlx::query(sql).fetch_all(conn).await?.iter().map(|found| row::parse(found, "id")).collect()
}

/// When the newest act was, if there is any.
pub async fn newest(conn: &mut Conn) -> Result<Option<Timestamp>, StoreError> {
    let found = sqlx::query("SELECT MAX(at) AS at FROM audit_links").fetch_one(conn).await?;
    row::optional_instant(&found, "at")
}

/// The names of all chains that there should be, or that there is anything of.
pub async fn chains(conn: &mut Conn) -> Result<Vec<String>, StoreError> {
    let sql = "SELECT $1 AS chain UNION SELECT id FROM services UNION SELECT chain FROM audit_heads \
               UNION SELECT DISTINCT chain FROM audit_links ORDER BY 1";
    let rows = sqlx::query(sql).bind(Chain::Deployment.to_string()).fetch_all(conn).await?;
    rows.iter().map(|found| row::get(found, "chain")).collect()
}

/// Which links.
#[derive(Debug, Clone, Default)]
pub struct LinkFilter {
    /// Of one chain.
    pub chain: Option<Chain>,
    /// Of one act.
    pub act: Option<Act>,
    /// About one agent.
    pub agent: Option<AgentId>,
    /// Not before.
    pub since: Option<Timestamp>,
    /// Before.
    pub until: Option<Timestamp>,
}

/// Links, newest first.
pub async fn list(conn: &mut Conn, filter: &LinkFilter, page: Page) -> Result<Listed<Link>, StoreError> {
    let LinkFilter { chain, act, agent, since, until } = filter;
    let texts = [
        ("chain", chain.map(|chain| chain.to_string())),
        ("act", act.map(|act| act.as_str().to_owned())),
        ("agent_id", agent.map(|agent| agent.to_string())),
    ];
    let texts: Vec<_> = texts.into_iter().filter_map(|(column, text)| Some((column, text?))).collect();
    let (least, most) = (since.map_or(i64::MIN, Timestamp::micros), until.map_or(i64::MAX, Timestamp::micros));
    let equal = (3..).zip(&texts).map(|(place, (column, _))| format!(" AND {column} = ${place}"));
    let which = format!("at >= $1 AND at < $2{}", equal.collect::<String>());
    let bound = |sql: String| {
        let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(least).bind(most);
        texts.iter().fold(query, |query, (_, text)| query.bind(text.clone()))
    };
    let count = bound(format!("SELECT CAST(COUNT(*) AS BIGINT) AS total FROM audit_links WHERE {which}"));
    let total = row::total(&count.fetch_one(&mut *conn).await?)?;
    // The order of a chain is that of its links, whatever the clocks said.
    let order = if chain.is_some() { "sequence DESC" } else { "at DESC, chain DESC, sequence DESC" };
    let (limit, offset) = (texts.len() + 3, texts.len() + 4);
    let sql =
        format!("SELECT {COLUMNS} FROM audit_links WHERE {which} ORDER BY {order} LIMIT ${limit} OFFSET ${offset}");
    let rows = bound(sql).bind(page.limit).bind(page.offset).fetch_all(conn).await?;
    Ok(Listed { items: rows.iter().map(read_link).collect::<Result<_, _>>()?, total })
}

/// Goes along a chain from its first link and shows each one that is good to `see`. Gives the length and the hash of the
/// whole chain, or its first broken link.
pub async fn walk(
    conn: &mut Conn,
    keys: &AuditKeys,
    chain: &str,
    mut see: impl FnMut(&Link),
) -> Result<Result<Head, Broken>, StoreError> {
    let mut walk = Walk::new(keys, chain);
    loop {
        let (length, rows) = (walk.length(), stride(conn, chain, walk.length()).await?);
        for found in &rows {
            let step = read_link(found).map_err(|_| walk.broken(Fault::Unreadable)).and_then(|link| {
                walk.step(&link)?;
                see(&link);
                Ok(())
            });
            if let Err(broken) = step {
                return Ok(Err(broken));
            }
        }
        if walk.length() == length {
            break;
        }
    }
    let head = sqlx::query("SELECT length, hash, mac FROM audit_heads WHERE chain = $1").bind(chain);
    let head = head.fetch_optional(conn).await?.and_then(|found| read_head(&found).ok());
    Ok(walk.end(head.as_ref()).map(|()| head.unwrap_or_default()))
}

/// The links after the first `passed`; before the first one, also those with a place that no link has.
async fn stride(conn: &mut Conn, chain: &str, passed: i64) -> Result<Vec<AnyRow>, StoreError> {
    let sql = sqlx::AssertSqlSafe(format!(
        "SELECT {COLUMNS} FROM audit_links WHERE chain = $1 AND sequence > $2 ORDER BY sequence LIMIT $3"
    ));
    let after = if passed == 0 { i64::MIN } else { passed };
    Ok(sqlx::query(sql).bind(chain).bind(after).bind(STRIDE).fetch_all(conn).await?)
}

fn read_head(found: &AnyRow) -> Result<Head, StoreError> {
    Ok(Head { length: row::get(found, "length")?, hash: row::get(found, "hash")?, mac: row::get(found, "mac")? })
}

fn read_link(found: &AnyRow) -> Result<Link, StoreError> {
    Ok(Link {
        chain: row::get(found, "chain")?,
        sequence: row::get(found, "sequence")?,
        at: row::instant(found, "at")?,
        act: row::get(found, "act")?,
        actor_kind: row::get(found, "actor_kind")?,
        actor_issuer: row::get(found, "actor_issuer")?,
        actor_id: row::get(found, "actor_id")?,
        address: row::get(found, "address")?,
        request_id: row::get(found, "request_id")?,
        agent: row::get(found, "agent_id")?,
        object_kind: row::get(found, "object_kind")?,
        object_id: row::get(found, "object_id")?,
        details: row::get(found, "details")?,
        previous: row::get(found, "previous")?,
        hash: row::get(found, "hash")?,
        mac: row::get(found, "mac")?,
    })
}
