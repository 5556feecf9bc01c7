//! Removes the rows that depend on deleted services and agents.
//!
//! A service or an agent can have any number of assignments, so the transaction that deletes it only marks it. Housekeeping
//! removes what depends on it in batches, see [`crate::operations`]. Feedback remains, and so do the API keys with which
//! sidecars learn of the deletion. The contacts of a deleted service remain until they are forgotten, because the weight of its
//! feedback depends on them.

use super::{Conn, StoreError, row, statements::statements};
use countersign_identity::{AgentId, RoleId, RoleName, ServiceId, Timestamp};
use sqlx::any::AnyRow;
use std::{fmt, time::Duration};

/// Lists assignments with the names of their roles.
macro_rules! list_assignments {
    ($column:literal) => {
        concat!(
            "SELECT a.agent_id, a.service_id, a.role_id, r.name FROM assignments a JOIN roles r ON r.id = a.role_id \
             WHERE a.",
            $column,
            " = $1 ORDER BY a.agent_id, a.role_id LIMIT $2"
        )
    };
}

statements! { STATEMENTS:
    LIST_SERVICES_TO_PURGE = "SELECT id FROM services WHERE purge_at <= $1 ORDER BY purge_at LIMIT $2";
    LIST_AGENTS_TO_PURGE = "SELECT id FROM agents WHERE purge_at <= $1 ORDER BY purge_at LIMIT $2";
    FINISH_SERVICE = "UPDATE services SET purge_at = CASE WHEN deleted_at <= $1 THEN NULL ELSE deleted_at + $2 END WHERE id = $3";
    FINISH_AGENT = "UPDATE agents SET purge_at = CASE WHEN deleted_at <= $1 THEN NULL ELSE deleted_at + $2 END WHERE id = $3";
    LIST_ASSIGNMENTS_OF_SERVICE = list_assignments!("service_id");
    LIST_ASSIGNMENTS_OF_AGENT = list_assignments!("agent_id");
    DELETE_DEPARTURES_FROM_SERVICE = "DELETE FROM agent_departures WHERE service_id = $1 AND agent_id IN \
         (SELECT agent_id FROM agent_departures WHERE service_id = $1 LIMIT $2)";
    DELETE_DEPARTURES_OF_AGENT = "DELETE FROM agent_departures WHERE agent_id = $1 AND service_id IN \
         (SELECT service_id FROM agent_departures WHERE agent_id = $1 LIMIT $2)";
    DELETE_CONTACTS_OF_AGENT = "DELETE FROM known_agents WHERE agent_id = $1 AND service_id IN \
         (SELECT service_id FROM known_agents WHERE agent_id = $1 LIMIT $2)";
    /// The API keys that were valid until the deletion remain: sidecars that were not connected learn of it with them. Their
    /// number is limited by a quota.
    DELETE_KEYS_OF_SERVICE = "DELETE FROM service_keys WHERE id IN (SELECT id FROM service_keys WHERE service_id = $1 \
         AND (revoked_at IS NULL OR revoked_at <> (SELECT deleted_at FROM services WHERE services.id = $1)) LIMIT $2)";
    DELETE_ROLES_OF_SERVICE = "DELETE FROM roles WHERE id IN (SELECT id FROM roles WHERE service_id = $1 LIMIT $2)";
}

/// A deleted service or agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deleted {
    /// A service.
    Service(ServiceId),
    /// An agent.
    Agent(AgentId),
}

/// An assignment of a deleted service or agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemainingAssignment {
    /// The agent.
    pub agent: AgentId,
    /// The service of the role.
    pub service: ServiceId,
    /// The role.
    pub role: RoleId,
    /// Name of the role.
    pub name: RoleName,
}

impl fmt::Display for Deleted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(service) => service.fmt(f),
            Self::Agent(agent) => agent.fmt(f),
        }
    }
}

/// Lists up to `limit` deleted services, and as many agents, of which rows are to be removed at `now`.
pub async fn list_due(conn: &mut Conn, now: Timestamp, limit: i64) -> Result<Vec<Deleted>, StoreError> {
    let services = sqlx::query(LIST_SERVICES_TO_PURGE).bind(now.micros()).bind(limit).fetch_all(&mut *conn).await?;
    let agents = sqlx::query(LIST_AGENTS_TO_PURGE).bind(now.micros()).bind(limit).fetch_all(conn).await?;
    let services = services.iter().map(|row| row::parse(row, "id").map(Deleted::Service));
    services.chain(agents.iter().map(|row| row::parse(row, "id").map(Deleted::Agent))).collect()
}

/// Lists up to `limit` assignments of a deleted service or agent.
pub async fn list_assignments(
    conn: &mut Conn,
    deleted: Deleted,
    limit: i64,
) -> Result<Vec<RemainingAssignment>, StoreError> {
    let sql = match deleted {
        Deleted::Service(_) => LIST_ASSIGNMENTS_OF_SERVICE,
        Deleted::Agent(_) => LIST_ASSIGNMENTS_OF_AGENT,
    };
    let rows = sqlx::query(sql).bind(deleted.to_string()).bind(limit).fetch_all(conn).await?;
    rows.iter().map(assignment_from_row).collect()
}

/// Removes up to `limit` rows of each other table. Returns the number of removed rows. The assignments must be removed before,
/// because they refer to the roles.
pub async fn delete_dependants(conn: &mut Conn, deleted: Deleted, limit: i64) -> Result<u64, StoreError> {
    let statements: &[&'static str] = match deleted {
        Deleted::Service(_) => &[DELETE_DEPARTURES_FROM_SERVICE, DELETE_KEYS_OF_SERVICE, DELETE_ROLES_OF_SERVICE],
        Deleted::Agent(_) => &[DELETE_DEPARTURES_OF_AGENT, DELETE_CONTACTS_OF_AGENT],
    };
    let mut removed = 0;
    for sql in statements {
        let query = sqlx::query(*sql).bind(deleted.to_string()).bind(limit);
        removed += query.execute(&mut *conn).await?.rows_affected();
    }
    Ok(removed)
}

/// Records that all rows are removed. If the deletion is younger than `margin`, a transaction that began before it may still
/// insert rows, so the rows are removed once more when the margin has passed.
pub async fn finish(conn: &mut Conn, deleted: Deleted, now: Timestamp, margin: Duration) -> Result<(), StoreError> {
    let sql = match deleted {
        Deleted::Service(_) => FINISH_SERVICE,
        Deleted::Agent(_) => FINISH_AGENT,
    };
    let margin_micros = i64::try_from(margin.as_micros()).unwrap_or(i64::MAX);
    let query = sqlx::query(sql).bind(now.saturating_sub(margin).micros()).bind(margin_micros);
    query.bind(deleted.to_string()).execute(conn).await?;
    Ok(())
}

fn assignment_from_row(row: &AnyRow) -> Result<RemainingAssignment, StoreError> {
    Ok(RemainingAssignment {
        agent: row::parse(row, "agent_id")?,
        service: row::parse(row, "service_id")?,
        role: row::parse(row, "role_id")?,
        name: row::convert(row, "name")?,
    })
}
