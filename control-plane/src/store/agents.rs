//! Agents.

use super::{Conn, StoreError, row};
use crate::domain::{
    agent::{Agent, Owner, Registration, parse_status, status_text},
    change::RevisionRange,
    page::{Listed, Page},
};
use countersign_identity::{
    AgentId, AgentKey, AgentStatus, Revision, RoleId, ServiceId, StatusWithCutoff, Timestamp, TrustScore,
};
use sqlx::any::AnyRow;

const COLUMNS: &str = "id, owner_issuer, owner_subject, email, name, public_key, public_key_hash, status, cutoff, trust, metadata, created_at, updated_at, last_seen_at";

/// Inserts a new agent.
pub async fn insert(conn: &mut Conn, agent: &Agent) -> Result<(), StoreError> {
    let Registration { owner, email, name, key, key_hash, metadata } = &agent.registration;
    sqlx::query(sqlx::AssertSqlSafe(format!(
        "INSERT INTO agents ({COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)"
    )))
    .bind(agent.id.to_string())
    .bind(owner.as_ref().map(|owner| owner.issuer.clone()))
    .bind(owner.as_ref().map(|owner| owner.subject.clone()))
    .bind(email.as_str())
    .bind(name.as_str())
    .bind(hex::encode(key.to_sec1()))
    .bind(key_hash)
    .bind(status_text(agent.status))
    .bind(agent.cutoff.number())
    .bind(agent.trust.hundredths())
    .bind(metadata.to_json())
    .bind(agent.created_at.micros())
    .bind(agent.updated_at.micros())
    .bind(agent.last_seen_at.map(Timestamp::micros))
    .execute(conn)
    .await?;
    Ok(())
}

/// The agent with this id.
pub async fn find(conn: &mut Conn, id: AgentId) -> Result<Option<Agent>, StoreError> {
    let sql = sqlx::AssertSqlSafe(format!("SELECT {COLUMNS} FROM agents WHERE id = $1"));
    sqlx::query(sql).bind(id.to_string()).fetch_optional(conn).await?.as_ref().map(read).transpose()
}

/// The agent that the same registrant registered with the same key and name: in public registration, whoever
/// gave the same e-mail address.
pub async fn find_again(conn: &mut Conn, wanted: &Registration) -> Result<Option<Agent>, StoreError> {
    let sql = sqlx::AssertSqlSafe(format!(
        "SELECT {COLUMNS} FROM agents WHERE public_key_hash = $1 AND name = $2 \
         AND COALESCE(owner_issuer, '') = $3 AND COALESCE(owner_subject, '') = $4 AND ($3 <> '' OR email = $5) \
         ORDER BY id LIMIT 1"
    ));
    let owner = wanted.owner.as_ref();
    let query = sqlx::query(sql)
        .bind(&wanted.key_hash)
        .bind(wanted.name.as_str())
        .bind(owner.map_or("", |owner| &owner.issuer))
        .bind(owner.map_or("", |owner| &owner.subject))
        .bind(wanted.email.as_str());
    query.fetch_optional(conn).await?.as_ref().map(read).transpose()
}

/// Whose agents, and which of them.
#[derive(Debug, Clone, Copy)]
pub struct Holding {
    /// The service at which they hold a role.
    pub service: ServiceId,
    /// The role that they hold, if only that counts.
    pub role: Option<RoleId>,
    /// Their status, if only that counts.
    pub status: Option<AgentStatus>,
    /// The instant at which they hold it.
    pub now: Timestamp,
}

/// Agents that hold a role at a service; newest first, since ids sort by their making.
pub async fn list(conn: &mut Conn, holding: &Holding, page: Page) -> Result<Listed<Agent>, StoreError> {
    let which = "($4 = '' OR status = $4) AND id IN (SELECT agent_id FROM assignments WHERE service_id = $1 \
                 AND (expires_at IS NULL OR expires_at > $2) AND ($3 = '' OR role_id = $3))";
    let Holding { service, role, status, now } = holding;
    let role = role.map_or(String::new(), |role| role.to_string());
    let (service, now, status) = (service.to_string(), now.micros(), status.map_or("", status_text));
    let count = sqlx::AssertSqlSafe(format!("SELECT CAST(COUNT(*) AS BIGINT) AS total FROM agents WHERE {which}"));
    let count = sqlx::query(count).bind(&service).bind(now).bind(&role).bind(status);
    let total = row::total(&count.fetch_one(&mut *conn).await?)?;
    let sql = format!("SELECT {COLUMNS} FROM agents WHERE {which} ORDER BY id DESC LIMIT $5 OFFSET $6");
    let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(&service).bind(now).bind(&role).bind(status);
    let rows = query.bind(page.limit).bind(page.offset).fetch_all(conn).await?;
    Ok(Listed { items: rows.iter().map(read).collect::<Result<_, _>>()?, total })
}

/// What of an agent concerns every sidecar.
pub struct Condition {
    /// The agent.
    pub agent: AgentId,
    /// Its trust.
    pub trust: TrustScore,
    /// Its status and cut-off.
    pub status: StatusWithCutoff,
}

/// The present condition of all agents whose trust or status changed in a stretch of the feed.
pub async fn changed(conn: &mut Conn, range: RevisionRange) -> Result<Vec<Condition>, StoreError> {
    let sql = "SELECT a.id, a.trust, a.status, a.cutoff FROM \
               (SELECT DISTINCT subject FROM changes WHERE facet IN ('trust', 'status') \
                AND revision > $1 AND revision <= $2) c JOIN agents a ON a.id = c.subject";
    let rows = sqlx::query(sql).bind(range.since.number()).bind(range.until.number()).fetch_all(conn).await?;
    let read = |found| {
        let status = StatusWithCutoff { status: read_status(found)?, cutoff: read_cutoff(found)? };
        Ok(Condition { agent: row::parse(found, "id")?, trust: read_trust(found)?, status })
    };
    rows.iter().map(read).collect()
}

/// How many agents are active.
pub async fn count_active(conn: &mut Conn) -> Result<i64, StoreError> {
    let sql = "SELECT CAST(COUNT(*) AS BIGINT) AS total FROM agents WHERE status = $1";
    row::total(&sqlx::query(sql).bind(status_text(AgentStatus::Active)).fetch_one(conn).await?)
}

/// Locks an agent's row until the transaction ends; false if there is no such agent.
pub async fn lock(conn: &mut Conn, id: AgentId) -> Result<bool, StoreError> {
    let sql = "UPDATE agents SET name = name WHERE id = $1";
    Ok(sqlx::query(sql).bind(id.to_string()).execute(conn).await?.rows_affected() == 1)
}

/// Notes that the agent was seen.
pub async fn seen(conn: &mut Conn, id: AgentId, now: Timestamp) -> Result<(), StoreError> {
    let sql = "UPDATE agents SET last_seen_at = $1 WHERE id = $2";
    sqlx::query(sql).bind(now.micros()).bind(id.to_string()).execute(conn).await?;
    Ok(())
}

/// Sets trust.
pub async fn set_trust(conn: &mut Conn, id: AgentId, trust: TrustScore, now: Timestamp) -> Result<(), StoreError> {
    let sql = "UPDATE agents SET trust = $1, updated_at = $2 WHERE id = $3";
    let query = sqlx::query(sql).bind(trust.hundredths()).bind(now.micros()).bind(id.to_string());
    if query.execute(conn).await?.rows_affected() == 1 { Ok(()) } else { Err(StoreError::Rows("set_trust")) }
}

/// Sets status and cut-off.
pub async fn set_status(
    conn: &mut Conn,
    id: AgentId,
    status: AgentStatus,
    cutoff: Revision,
    now: Timestamp,
) -> Result<(), StoreError> {
    let sql = "UPDATE agents SET status = $1, cutoff = $2, updated_at = $3 WHERE id = $4";
    let done = sqlx::query(sql)
        .bind(status_text(status))
        .bind(cutoff.number())
        .bind(now.micros())
        .bind(id.to_string())
        .execute(conn)
        .await?;
    if done.rows_affected() == 1 { Ok(()) } else { Err(StoreError::Rows("set_status")) }
}

fn read(found: &AnyRow) -> Result<Agent, StoreError> {
    let key = hex::decode(row::get::<String>(found, "public_key")?).map_err(|_| StoreError::Corrupt("public_key"))?;
    Ok(Agent {
        id: row::parse(found, "id")?,
        registration: Registration {
            owner: read_owner(found)?,
            email: row::convert(found, "email")?,
            name: row::convert(found, "name")?,
            key: AgentKey::from_sec1(&key).map_err(|_| StoreError::Corrupt("public_key"))?,
            key_hash: row::get(found, "public_key_hash")?,
            metadata: row::metadata(found)?,
        },
        status: read_status(found)?,
        cutoff: read_cutoff(found)?,
        trust: read_trust(found)?,
        created_at: row::instant(found, "created_at")?,
        updated_at: row::instant(found, "updated_at")?,
        last_seen_at: row::optional_instant(found, "last_seen_at")?,
    })
}

fn read_status(found: &AnyRow) -> Result<AgentStatus, StoreError> {
    parse_status(&row::get::<String>(found, "status")?).ok_or(StoreError::Corrupt("status"))
}

fn read_cutoff(found: &AnyRow) -> Result<Revision, StoreError> {
    row::get(found, "cutoff").map(Revision::new)
}

fn read_trust(found: &AnyRow) -> Result<TrustScore, StoreError> {
    TrustScore::from_hundredths(row::get(found, "trust")?).map_err(|_| StoreError::Corrupt("trust"))
}

/// Who owns the row; nobody if it was made in public registration.
pub(super) fn read_owner(found: &AnyRow) -> Result<Option<Owner>, StoreError> {
    let issuer: Option<String> = row::get(found, "owner_issuer")?;
    let subject: Option<String> = row::get(found, "owner_subject")?;
    Ok(issuer.zip(subject).map(|(issuer, subject)| Owner { issuer, subject }))
}
