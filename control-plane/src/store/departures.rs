//! The table of departures: the services that the owner of an agent has left, so that they cannot assign roles to the agent. Also
//! lists the services where an agent holds roles.

use super::{
    Conn, StoreError,
    query::{params, text_or_empty},
    row,
    statements::statements,
};
use crate::domain::{
    agent::ServiceOfAgent,
    page::{ItemCount, ListPage, MAX_SEARCHED_ROWS, Page},
};
use countersign_identity::{AgentId, ServiceId, Timestamp};
use sqlx::any::AnyRow;

/// The condition that the role of an assignment is not deleted.
macro_rules! is_of_live_role {
    () => {
        "NOT EXISTS (SELECT 1 FROM roles d WHERE d.id = role_id AND d.deleted_at IS NOT NULL)"
    };
}

/// The services in a range of ids (after `$4`, before `$3`) at which an agent (`$1`) holds a role at a time (`$2`), or which its
/// owner has left.
macro_rules! services_of_agent {
    () => {
        concat!(
            "(SELECT service_id FROM assignments WHERE agent_id = $1 AND service_id < $3 AND service_id > $4 \
             AND (expires_at IS NULL OR expires_at > $2) AND ",
            is_of_live_role!(),
            " UNION SELECT service_id FROM agent_departures WHERE agent_id = $1 AND service_id < $3 AND service_id > $4) c \
             JOIN services s ON s.id = c.service_id AND s.deleted_at IS NULL"
        )
    };
}

/// Finds where a search ends: of the rows of an agent (`$1`) below a service (`$2`), highest first, skips `$3`, returns the next.
macro_rules! end_of_search {
    ($table:literal) => {
        concat!(
            "SELECT service_id FROM ",
            $table,
            " WHERE agent_id = $1 AND service_id < $2 ORDER BY service_id DESC LIMIT 1 OFFSET $3"
        )
    };
}

statements! { STATEMENTS:
    INSERT_DEPARTURE = "INSERT INTO agent_departures (agent_id, service_id, left_at, held_role) VALUES ($1, $2, $3, $4) \
         ON CONFLICT (agent_id, service_id) DO NOTHING";
    DELETE_DEPARTURE = "DELETE FROM agent_departures WHERE agent_id = $1 AND service_id = $2";
    FIND_DEPARTURE = "SELECT left_at FROM agent_departures WHERE agent_id = $1 AND service_id = $2";
    END_OF_ASSIGNMENTS = end_of_search!("assignments");
    END_OF_DEPARTURES = end_of_search!("agent_departures");
    COUNT_SERVICES_OF_AGENT = concat!("SELECT CAST(COUNT(*) AS BIGINT) AS total FROM ", services_of_agent!());
    /// If the agent held no role at a service that its owner left, the name is NULL. Otherwise, anyone could read the name of any
    /// service.
    LIST_SERVICES_OF_AGENT = concat!(
        "SELECT s.id, CASE WHEN d.held_role = 0 THEN NULL ELSE s.name END AS name, d.left_at FROM ", services_of_agent!(),
        " LEFT JOIN agent_departures d ON d.agent_id = $1 AND d.service_id = s.id ORDER BY s.id DESC LIMIT $5 + 0 OFFSET $6"
    );
    LIST_ROLES_OF_AGENT = "SELECT a.service_id, r.name, a.expires_at FROM assignments a JOIN roles r ON r.id = a.role_id \
         WHERE a.agent_id = $1 AND (a.expires_at IS NULL OR a.expires_at > $2) AND r.deleted_at IS NULL \
         AND a.service_id >= $3 AND a.service_id <= $4 ORDER BY a.service_id, r.name";
}

/// Records that the owner of an agent leaves a service, and whether the agent held a role there. Returns false if the owner has
/// already left it.
pub async fn insert(
    conn: &mut Conn,
    agent: AgentId,
    service: ServiceId,
    held_role: bool,
    now: Timestamp,
) -> Result<bool, StoreError> {
    conn.changes_row(INSERT_DEPARTURE, params![agent, service, now, held_role]).await
}

/// Allows a service that the owner has left to assign roles to the agent again. Returns false if it was already allowed.
pub async fn delete(conn: &mut Conn, agent: AgentId, service: ServiceId) -> Result<bool, StoreError> {
    conn.changes_row(DELETE_DEPARTURE, params![agent, service]).await
}

/// Whether the owner of an agent has left a service.
pub async fn contains(conn: &mut Conn, agent: AgentId, service: ServiceId) -> Result<bool, StoreError> {
    conn.has_row(FIND_DEPARTURE, params![agent, service]).await
}

/// Lists the services at which an agent holds a role, and the services that its owner has left, newest first. Anyone can assign
/// roles to an agent, so a page searches a limited number of assignments.
pub async fn list_services(
    conn: &mut Conn,
    agent: AgentId,
    now: Timestamp,
    page: Page<ServiceId>,
) -> Result<ListPage<ServiceOfAgent, ServiceId>, StoreError> {
    let of_range = |before: ServiceId, end: Option<ServiceId>| params![agent, now, before, text_or_empty(end)];
    let top = ServiceId::from_bits(u128::MAX);
    let counted_until = end_of_search(conn, agent, top).await?;
    let count = conn.read_row(COUNT_SERVICES_OF_AGENT, of_range(top, counted_until), row::total_count).await?;
    let total = ItemCount { count, is_lower_bound: counted_until.is_some() };
    let (before, searched_until) = match page.after {
        None => (top, counted_until),
        Some(after) => (after, end_of_search(conn, agent, after).await?),
    };
    let (sql, parameters) = (LIST_SERVICES_OF_AGENT, of_range(before, searched_until));
    let mut list = conn.list_page(sql, parameters, &page, total, service_from_row, |item| item.service).await?;
    add_roles(conn, agent, now, &mut list.items).await?;
    // The search ended before the service `end`, so the next page must begin with it.
    let end = searched_until.map(|end| ServiceId::from_bits(end.bits().saturating_add(1)));
    Ok(ListPage { next: list.next.or(end), ..list })
}

/// Finds where a page that begins below the service `before` must end its search, so that it reads a limited number of rows: before
/// the returned service. `None` if the page can search all services.
async fn end_of_search(conn: &mut Conn, agent: AgentId, before: ServiceId) -> Result<Option<ServiceId>, StoreError> {
    let mut end = None;
    for sql in [END_OF_ASSIGNMENTS, END_OF_DEPARTURES] {
        let parameters = params![agent, before, MAX_SEARCHED_ROWS];
        end = end.max(conn.find_row(sql, parameters, |row| row::parse(row, "service_id")).await?);
    }
    Ok(end)
}

/// Adds the roles of an agent to its services. `items` must be all its services in a range of ids, in descending order.
async fn add_roles(
    conn: &mut Conn,
    agent: AgentId,
    now: Timestamp,
    items: &mut [ServiceOfAgent],
) -> Result<(), StoreError> {
    let (Some(last), Some(first)) = (items.first(), items.last()) else { return Ok(()) };
    let parameters = params![agent, now, first.service, last.service];
    let add_role = |row: &AnyRow| {
        let service: ServiceId = row::parse(row, "service_id")?;
        let role = (row::convert(row, "name")?, row::optional_timestamp(row, "expires_at")?);
        items.iter_mut().filter(|item| item.service == service).for_each(|item| item.roles.push(role.clone()));
        Ok(())
    };
    conn.list_rows(LIST_ROLES_OF_AGENT, parameters, add_role).await
}

fn service_from_row(row: &AnyRow) -> Result<ServiceOfAgent, StoreError> {
    Ok(ServiceOfAgent {
        service: row::parse(row, "id")?,
        name: row::convert_optional(row, "name")?,
        left_at: row::optional_timestamp(row, "left_at")?,
        roles: Vec::new(),
    })
}
