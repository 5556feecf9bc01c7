//! The table of departures (the services that the owner of an agent has left), and the services that an agent has to do with.

use super::{Conn, StoreError, row, statements::statements};
use crate::domain::{
    agent::ServiceOfAgent,
    page::{ListPage, Page},
};
use countersign_identity::{AgentId, ServiceId, Timestamp};
use sqlx::any::AnyRow;

/// The condition that the role of an assignment is not deleted.
macro_rules! is_of_live_role {
    () => {
        "NOT EXISTS (SELECT 1 FROM roles d WHERE d.id = role_id AND d.deleted_at IS NOT NULL)"
    };
}

/// The condition for services at which an agent (`$1`) holds a role at a time (`$2`), or which its owner has left.
macro_rules! concerns_agent {
    () => {
        concat!(
            "s.deleted_at IS NULL AND s.id IN (SELECT service_id FROM assignments WHERE agent_id = $1 \
             AND (expires_at IS NULL OR expires_at > $2) AND ",
            is_of_live_role!(),
            " UNION SELECT service_id FROM agent_departures WHERE agent_id = $1)"
        )
    };
}

statements! { STATEMENTS:
    INSERT_DEPARTURE = "INSERT INTO agent_departures (agent_id, service_id, left_at, held_role) VALUES ($1, $2, $3, $4) \
         ON CONFLICT (agent_id, service_id) DO NOTHING";
    DELETE_DEPARTURE = "DELETE FROM agent_departures WHERE agent_id = $1 AND service_id = $2";
    FIND_DEPARTURE = "SELECT left_at FROM agent_departures WHERE agent_id = $1 AND service_id = $2";
    COUNT_SERVICES_OF_AGENT = concat!(
        "SELECT CAST(COUNT(*) AS BIGINT) AS total FROM services s WHERE ", concerns_agent!()
    );
    LIST_SERVICES_OF_AGENT = concat!(
        "SELECT s.id, CASE WHEN d.held_role = 0 THEN NULL ELSE s.name END AS name, d.left_at FROM services s \
         LEFT JOIN agent_departures d ON d.agent_id = $1 AND d.service_id = s.id WHERE ", concerns_agent!(),
        " ORDER BY s.id DESC LIMIT $3 OFFSET $4"
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
    let query = sqlx::query(INSERT_DEPARTURE).bind(agent.to_string()).bind(service.to_string()).bind(now.micros());
    Ok(query.bind(i64::from(held_role)).execute(conn).await?.rows_affected() == 1)
}

/// Allows the service to assign roles again. Returns false if it was allowed.
pub async fn delete(conn: &mut Conn, agent: AgentId, service: ServiceId) -> Result<bool, StoreError> {
    let query = sqlx::query(DELETE_DEPARTURE).bind(agent.to_string()).bind(service.to_string());
    Ok(query.execute(conn).await?.rows_affected() == 1)
}

/// Whether the owner of an agent has left a service.
pub async fn has_left(conn: &mut Conn, agent: AgentId, service: ServiceId) -> Result<bool, StoreError> {
    let query = sqlx::query(FIND_DEPARTURE).bind(agent.to_string()).bind(service.to_string());
    Ok(query.fetch_optional(conn).await?.is_some())
}

/// Lists the services at which an agent holds a role, and those that its owner has left, newest first.
pub async fn list_services(
    conn: &mut Conn,
    agent: AgentId,
    now: Timestamp,
    page: Page,
) -> Result<ListPage<ServiceOfAgent>, StoreError> {
    let query = |sql| sqlx::query(sql).bind(agent.to_string()).bind(now.micros());
    let total = row::total_count(&query(COUNT_SERVICES_OF_AGENT).fetch_one(&mut *conn).await?)?;
    let rows = query(LIST_SERVICES_OF_AGENT).bind(page.limit).bind(page.offset).fetch_all(&mut *conn).await?;
    let mut items = rows.iter().map(service_from_row).collect::<Result<Vec<_>, _>>()?;
    // The page is a range of ids in descending order.
    if let (Some(last), Some(first)) = (items.first(), items.last()) {
        let query = query(LIST_ROLES_OF_AGENT).bind(first.service.to_string()).bind(last.service.to_string());
        for row in &query.fetch_all(conn).await? {
            let service: ServiceId = row::parse(row, "service_id")?;
            let role = (row::convert(row, "name")?, row::optional_timestamp(row, "expires_at")?);
            items.iter_mut().filter(|item| item.service == service).for_each(|item| item.roles.push(role.clone()));
        }
    }
    Ok(ListPage { items, total })
}

fn service_from_row(row: &AnyRow) -> Result<ServiceOfAgent, StoreError> {
    Ok(ServiceOfAgent {
        service: row::parse(row, "id")?,
        name: row::convert_optional(row, "name")?,
        left_at: row::optional_timestamp(row, "left_at")?,
        roles: Vec::new(),
    })
}
