//! The table of agents.

use super::{
    Conn, StoreError,
    query::{params, text_or_empty},
    row,
    statements::statements,
};
use crate::domain::{
    agent::{Agent, Owner, Registration, parse_status, status_text},
    page::{ItemCount, ListPage, MAX_SEARCHED_ROWS, Page},
};
use countersign_identity::{
    AgentId, AgentStatus, Revision, RoleId, ServiceId, StatusWithCutoff, Timestamp, TrustScore,
};
use sqlx::any::AnyRow;

macro_rules! columns {
    () => {
        "id, owner_issuer, owner_subject, email, name, public_key, public_key_hash, status, cutoff, trust, metadata, \
         created_at, updated_at, last_seen_at, last_service_id"
    };
}

/// Selects the agents, with ids below `$2` and above `$3`, that hold a role. `$1` is the id of the role, or of its service,
/// depending on the column. Roles that are deleted, or have expired at `$4`, do not count. If `$5` is not empty, the agents must
/// have this status.
///
/// A subquery reads the status of each agent: with a join instead, the planner could choose to read all agents.
macro_rules! holders {
    ($column:literal) => {
        concat!(
            "SELECT DISTINCT a.agent_id FROM assignments a WHERE a.",
            $column,
            " = $1 AND a.agent_id < $2 AND a.agent_id > $3 AND (a.expires_at IS NULL OR a.expires_at > $4) \
             AND (SELECT COUNT(*) FROM roles r WHERE r.id = a.role_id AND r.deleted_at IS NULL) = 1 \
             AND (SELECT COUNT(*) FROM agents g WHERE g.id = a.agent_id AND g.deleted_at IS NULL \
             AND ($5 = '' OR g.status = $5)) = 1"
        )
    };
}

macro_rules! count_holders {
    ($column:literal) => {
        concat!("SELECT CAST(COUNT(*) AS BIGINT) AS total FROM (", holders!($column), ") holders")
    };
}

macro_rules! list_holders {
    ($column:literal) => {
        concat!(
            "SELECT ",
            columns!(),
            " FROM (",
            holders!($column),
            " ORDER BY a.agent_id DESC LIMIT $6 + 0 OFFSET $7) holders JOIN agents ON id = holders.agent_id ORDER BY id DESC"
        )
    };
}

/// Finds where a search ends: of the assignments to agents below `$2`, highest id first, skips `$3`, and returns the next agent.
macro_rules! end_of_holders {
    ($column:literal) => {
        concat!(
            "SELECT agent_id FROM assignments WHERE ",
            $column,
            " = $1 AND agent_id < $2 ORDER BY agent_id DESC LIMIT 1 OFFSET $3"
        )
    };
}

statements! { STATEMENTS:
    INSERT_AGENT = concat!(
        "INSERT INTO agents (", columns!(), ") VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15) \
         ON CONFLICT DO NOTHING"
    );
    FIND_AGENT = concat!("SELECT ", columns!(), " FROM agents WHERE id = $1 AND deleted_at IS NULL");
    FIND_STATE = "SELECT id, trust, status, cutoff FROM agents WHERE id = $1";
    /// Has the same conditions as the unique index `agents_by_registration`.
    FIND_AGENT_BY_REGISTRATION = concat!(
        "SELECT ", columns!(), " FROM agents WHERE public_key_hash = $1 AND name = $2 \
         AND COALESCE(owner_issuer, '') = $3 AND COALESCE(owner_subject, '') = $4 \
         AND CASE WHEN owner_issuer IS NULL THEN email ELSE '' END = $5 AND superseded_at IS NULL"
    );
    END_OF_HOLDERS_AT_SERVICE = end_of_holders!("service_id");
    END_OF_HOLDERS_OF_ROLE = end_of_holders!("role_id");
    COUNT_HOLDERS_AT_SERVICE = count_holders!("service_id");
    COUNT_HOLDERS_OF_ROLE = count_holders!("role_id");
    LIST_HOLDERS_AT_SERVICE = list_holders!("service_id");
    LIST_HOLDERS_OF_ROLE = list_holders!("role_id");
    COUNT_AGENTS_BY_OWNER = "SELECT CAST(COUNT(*) AS BIGINT) AS total FROM (SELECT 1 AS one FROM agents \
         WHERE owner_issuer = $1 AND owner_subject = $2 LIMIT $3 + 0) counted";
    LIST_AGENTS_BY_OWNER = concat!(
        "SELECT ", columns!(), " FROM agents WHERE owner_issuer = $1 AND owner_subject = $2 AND id < $3 \
         ORDER BY id DESC LIMIT $4 + 0 OFFSET $5"
    );
    LOCK_AGENT = "UPDATE agents SET name = name WHERE id = $1 AND deleted_at IS NULL";
    SET_LAST_SEEN = "UPDATE agents SET last_seen_at = $1, last_service_id = $2 WHERE id = $3";
    SET_TRUST = "UPDATE agents SET trust = $1, updated_at = $2 WHERE id = $3";
    /// Sets `superseded_at`, so that a new registration with the same data creates another agent.
    MARK_DELETED = "UPDATE agents SET deleted_at = $1, purge_at = $1, updated_at = $1, status = $2, cutoff = $3, \
         owner_issuer = NULL, owner_subject = NULL, email = '', name = '', public_key = '', public_key_hash = '', \
         metadata = '{}', last_seen_at = NULL, last_service_id = NULL, \
         superseded_at = COALESCE(superseded_at, $1) WHERE id = $4 AND deleted_at IS NULL";
    SET_STATUS = "UPDATE agents SET status = $1, cutoff = $2, updated_at = $3 WHERE id = $4";
}

/// Inserts a new agent. Returns false if there is an agent with the same registration, see [`find_by_registration`].
pub async fn insert(conn: &mut Conn, agent: &Agent) -> Result<bool, StoreError> {
    let Registration { owner, email, name, key, key_hash, metadata } = &agent.registration;
    let parameters = params![
        agent.id,
        owner.as_ref().map(|owner| &owner.issuer),
        owner.as_ref().map(|owner| &owner.subject),
        email,
        name,
        hex::encode(key.to_sec1()),
        key_hash,
        status_text(agent.status),
        agent.cutoff,
        agent.trust,
        metadata.to_json(),
        agent.created_at,
        agent.updated_at,
        agent.last_seen_at,
        agent.last_service,
    ];
    conn.changes_row(INSERT_AGENT, parameters).await
}

/// Revokes an agent, erases all data of its registration, and queues the removal of the rows that depend on it. Tokens and sessions
/// with a revision below `cutoff` become invalid.
pub async fn mark_deleted(conn: &mut Conn, id: AgentId, cutoff: Revision, now: Timestamp) -> Result<(), StoreError> {
    conn.must_change_row(MARK_DELETED, "delete_agent", params![now, status_text(AgentStatus::Revoked), cutoff, id])
        .await
}

/// Finds the state of an agent on which the validity of its tokens depends. A deleted agent is revoked.
pub async fn find_state(conn: &mut Conn, id: AgentId) -> Result<Option<AgentState>, StoreError> {
    conn.find_row(FIND_STATE, params![id], state_from_row).await
}

/// Finds an agent that is not deleted.
pub async fn find(conn: &mut Conn, id: AgentId) -> Result<Option<Agent>, StoreError> {
    conn.find_row(FIND_AGENT, params![id], agent_from_row).await
}

/// Finds the agent that the same owner registered with the same key and name. A public registration has no owner, so we compare the
/// e-mail address instead.
pub async fn find_by_registration(conn: &mut Conn, registration: &Registration) -> Result<Option<Agent>, StoreError> {
    let Registration { owner, email, name, key: _, key_hash, metadata: _ } = registration;
    let parameters = match owner {
        Some(Owner { issuer, subject }) => params![key_hash, name, issuer, subject, ""],
        None => params![key_hash, name, "", "", email],
    };
    conn.find_row(FIND_AGENT_BY_REGISTRATION, parameters, agent_from_row).await
}

/// Selects agents by role and status.
#[derive(Debug, Clone, Copy)]
pub struct RoleHolderFilter {
    /// The service at which the agents hold a role.
    pub service: ServiceId,
    /// If set, only agents with the role.
    pub role: Option<RoleId>,
    /// If set, only agents with the status.
    pub status: Option<AgentStatus>,
    /// Agents whose role has expired at this time do not count.
    pub now: Timestamp,
}

/// Lists agents that hold a role at a service, newest first (ids sort by creation time). A page searches a limited number of
/// assignments for agents that match the filter.
pub async fn list_role_holders(
    conn: &mut Conn,
    filter: &RoleHolderFilter,
    page: Page<AgentId>,
) -> Result<ListPage<Agent, AgentId>, StoreError> {
    let RoleHolderFilter { service, role, status, now } = filter;
    let (holders_of, [end_sql, count_sql, list_sql]) = match role {
        None => (service.to_string(), [END_OF_HOLDERS_AT_SERVICE, COUNT_HOLDERS_AT_SERVICE, LIST_HOLDERS_AT_SERVICE]),
        Some(role) => (role.to_string(), [END_OF_HOLDERS_OF_ROLE, COUNT_HOLDERS_OF_ROLE, LIST_HOLDERS_OF_ROLE]),
    };
    let of_range = |before: AgentId, end: Option<AgentId>| {
        params![holders_of, before, text_or_empty(end), now, status.map_or("", status_text)]
    };
    let top = AgentId::from_bits(u128::MAX);
    let counted_until = end_of_holders(conn, end_sql, &holders_of, top).await?;
    let count = conn.read_row(count_sql, of_range(top, counted_until), row::total_count).await?;
    let total = ItemCount { count, is_lower_bound: counted_until.is_some() };
    let (before, searched_until) = match page.after {
        None => (top, counted_until),
        Some(after) => (after, end_of_holders(conn, end_sql, &holders_of, after).await?),
    };
    let parameters = of_range(before, searched_until);
    let list = conn.list_page(list_sql, parameters, &page, total, agent_from_row, |agent| agent.id).await?;
    // The search ended before the agent `end`, so the next page must begin with it.
    let end = searched_until.map(|end| AgentId::from_bits(end.bits().saturating_add(1)));
    Ok(ListPage { next: list.next.or(end), ..list })
}

/// Finds where a page that begins below the agent `before` must end its search, so that it reads a limited number of assignments:
/// before the returned agent. `None` if the page can search all agents.
async fn end_of_holders(
    conn: &mut Conn,
    sql: &'static str,
    holders_of: &str,
    before: AgentId,
) -> Result<Option<AgentId>, StoreError> {
    conn.find_row(sql, params![holders_of, before, MAX_SEARCHED_ROWS], |row| row::parse(row, "agent_id")).await
}

/// Lists the agents of an owner, newest first.
pub async fn list_by_owner(
    conn: &mut Conn,
    owner: &Owner,
    page: Page<AgentId>,
) -> Result<ListPage<Agent, AgentId>, StoreError> {
    let Owner { issuer, subject } = owner;
    let total = conn.count_items(COUNT_AGENTS_BY_OWNER, params![issuer, subject]).await?;
    let before = page.after.unwrap_or(AgentId::from_bits(u128::MAX));
    let parameters = params![issuer, subject, before];
    conn.list_page(LIST_AGENTS_BY_OWNER, parameters, &page, total, agent_from_row, |agent| agent.id).await
}

/// The state of an agent that sidecars need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AgentState {
    pub agent: AgentId,
    pub trust: TrustScore,
    /// Status of the agent, and its cutoff revision (tokens with a lower revision are revoked).
    pub status: StatusWithCutoff,
}

/// Locks the row of an agent until the transaction ends. Returns false if there is no such agent, or if it is deleted.
pub async fn lock(conn: &mut Conn, id: AgentId) -> Result<bool, StoreError> {
    conn.changes_row(LOCK_AGENT, params![id]).await
}

/// Sets the time at which an agent last authenticated, and the service of its last login.
pub async fn set_last_seen(
    conn: &mut Conn,
    id: AgentId,
    service: Option<ServiceId>,
    now: Timestamp,
) -> Result<(), StoreError> {
    conn.apply(SET_LAST_SEEN, params![now, service, id]).await
}

/// Sets the trust score. The agent must exist.
pub async fn set_trust(conn: &mut Conn, id: AgentId, trust: TrustScore, now: Timestamp) -> Result<(), StoreError> {
    conn.must_change_row(SET_TRUST, "set_trust", params![trust, now, id]).await
}

/// Sets the status and the cutoff revision (tokens with a lower revision are revoked). The agent must exist.
pub async fn set_status(
    conn: &mut Conn,
    id: AgentId,
    status: AgentStatus,
    cutoff: Revision,
    now: Timestamp,
) -> Result<(), StoreError> {
    conn.must_change_row(SET_STATUS, "set_status", params![status_text(status), cutoff, now, id]).await
}

fn agent_from_row(row: &AnyRow) -> Result<Agent, StoreError> {
    Ok(Agent {
        id: row::parse(row, "id")?,
        registration: Registration {
            owner: owner_from_row(row)?,
            email: row::convert(row, "email")?,
            name: row::convert(row, "name")?,
            key: row::public_key(row, "public_key")?,
            key_hash: row::get(row, "public_key_hash")?,
            metadata: row::metadata(row)?,
        },
        status: status_from_row(row)?,
        cutoff: row::revision(row, "cutoff")?,
        trust: trust_from_row(row)?,
        created_at: row::timestamp(row, "created_at")?,
        updated_at: row::timestamp(row, "updated_at")?,
        last_seen_at: row::optional_timestamp(row, "last_seen_at")?,
        last_service: row::parse_optional(row, "last_service_id")?,
    })
}

fn state_from_row(row: &AnyRow) -> Result<AgentState, StoreError> {
    let status = StatusWithCutoff { status: status_from_row(row)?, cutoff: row::revision(row, "cutoff")? };
    Ok(AgentState { agent: row::parse(row, "id")?, trust: trust_from_row(row)?, status })
}

pub(super) fn status_from_row(row: &AnyRow) -> Result<AgentStatus, StoreError> {
    parse_status(&row::get::<String>(row, "status")?).ok_or(StoreError::Corrupt("status"))
}

pub(super) fn trust_from_row(row: &AnyRow) -> Result<TrustScore, StoreError> {
    TrustScore::from_hundredths(row::get(row, "trust")?).map_err(|_| StoreError::Corrupt("trust"))
}

/// Reads the columns of the owner; `None` for an agent from public registration.
pub(super) fn owner_from_row(row: &AnyRow) -> Result<Option<Owner>, StoreError> {
    let issuer: Option<String> = row::get(row, "owner_issuer")?;
    let subject: Option<String> = row::get(row, "owner_subject")?;
    Ok(issuer.zip(subject).map(|(issuer, subject)| Owner { issuer, subject }))
}
