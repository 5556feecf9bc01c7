//! Removes the rows that depend on deleted services, agents and roles.
//!
//! A service, an agent or a role can have any number of assignments, so the transaction that deletes it only marks it. Background
//! work removes what depends on it in batches, see [`crate::operations`]. Feedback remains, and so do the API keys with which
//! sidecars learn of the deletion. The contacts of a deleted service with agents remain until they expire, because the weight of
//! its feedback depends on them.

use super::{
    Conn, StoreError,
    query::{Parameter, ToParameter, params},
    row,
    statements::statements,
};
use countersign_identity::{AgentId, RoleId, RoleName, ServiceId, Timestamp};
use sqlx::any::AnyRow;
use std::time::Duration;

/// Deletes assignments, and returns them with the names of their roles. Takes them in any order, because no index orders the
/// assignments of a role.
macro_rules! take_assignments {
    ($column:literal) => {
        concat!(
            "DELETE FROM assignments WHERE (agent_id, role_id) IN (SELECT agent_id, role_id FROM assignments WHERE ",
            $column,
            " = $1 LIMIT $2 + 0) RETURNING agent_id, service_id, role_id, expires_at, expiry_reported_at, \
             (SELECT COALESCE(r.deleted_name, r.name) FROM roles r WHERE r.id = assignments.role_id) AS name, \
             (SELECT r.deleted_at FROM roles r WHERE r.id = assignments.role_id) AS role_deleted_at"
        )
    };
}

/// Lists the deleted objects whose dependent rows must be removed at `$1`, in the order of their deletion.
macro_rules! list_due {
    ($table:literal, $due:literal) => {
        concat!(
            "SELECT id FROM ",
            $table,
            " WHERE ",
            $due,
            " IS NOT NULL AND ",
            $due,
            " <= $1 ORDER BY ",
            $due,
            " LIMIT $2 + 0"
        )
    };
}

statements! { STATEMENTS:
    OLDEST_SERVICE = "SELECT MIN(purge_at) AS oldest FROM services WHERE purge_at IS NOT NULL";
    OLDEST_AGENT = "SELECT MIN(purge_at) AS oldest FROM agents WHERE purge_at IS NOT NULL";
    OLDEST_ROLE = "SELECT MIN(deleted_at) AS oldest FROM roles WHERE deleted_at IS NOT NULL";
    LIST_SERVICES_TO_PURGE = list_due!("services", "purge_at");
    LIST_AGENTS_TO_PURGE = list_due!("agents", "purge_at");
    LIST_ROLES_TO_PURGE = list_due!("roles", "deleted_at");
    FINISH_SERVICE = "UPDATE services SET purge_at = CASE WHEN deleted_at <= $1 THEN NULL ELSE deleted_at + $2 END WHERE id = $3";
    FINISH_AGENT = "UPDATE agents SET purge_at = CASE WHEN deleted_at <= $1 THEN NULL ELSE deleted_at + $2 END WHERE id = $3";
    /// Fails if the role still has assignments, because they refer to it.
    DELETE_ROLE = "DELETE FROM roles WHERE id = $1 AND deleted_at IS NOT NULL";
    TAKE_ASSIGNMENTS_OF_SERVICE = take_assignments!("service_id");
    TAKE_ASSIGNMENTS_OF_AGENT = take_assignments!("agent_id");
    TAKE_ASSIGNMENTS_OF_ROLE = take_assignments!("role_id");
    DELETE_DEPARTURES_FROM_SERVICE = "DELETE FROM agent_departures WHERE service_id = $1 AND agent_id IN \
         (SELECT agent_id FROM agent_departures WHERE service_id = $1 LIMIT $2 + 0)";
    DELETE_DEPARTURES_OF_AGENT = "DELETE FROM agent_departures WHERE agent_id = $1 AND service_id IN \
         (SELECT service_id FROM agent_departures WHERE agent_id = $1 LIMIT $2 + 0)";
    DELETE_CONTACTS_OF_AGENT = "DELETE FROM known_agents WHERE agent_id = $1 AND service_id IN \
         (SELECT service_id FROM known_agents WHERE agent_id = $1 LIMIT $2 + 0)";
    /// API keys that were valid until the deletion remain: with them, sidecars that were not connected learn of the deletion. A
    /// quota limits their number.
    DELETE_KEYS_OF_SERVICE = "DELETE FROM service_keys WHERE id IN (SELECT id FROM service_keys WHERE service_id = $1 \
         AND (revoked_at IS NULL OR revoked_at <> (SELECT deleted_at FROM services WHERE services.id = $1)) LIMIT $2 + 0)";
    DELETE_ROLES_OF_SERVICE = "DELETE FROM roles WHERE id IN (SELECT id FROM roles WHERE service_id = $1 LIMIT $2 + 0)";
}

/// The kinds of objects that can be deleted while any number of rows depends on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeletedKind {
    Services,
    Agents,
    Roles,
}

/// A deleted service, agent or role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deleted {
    Service(ServiceId),
    Agent(AgentId),
    Role(RoleId),
}

/// An assignment that was removed, because its service, agent or role was deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TakenAssignment {
    pub agent: AgentId,
    pub service: ServiceId,
    pub role: RoleId,
    /// Name of the role.
    pub name: RoleName,
    /// When the role was deleted; `None` if it is not.
    pub role_deleted_at: Option<Timestamp>,
    /// Expiry of the assignment, in the past or the future; `None` if it had no expiry.
    pub expires_at: Option<Timestamp>,
    /// Whether a webhook event has reported the expiry.
    pub expiry_reported: bool,
}

impl ToParameter for Deleted {
    const NULL: Parameter = Parameter::Text(None);

    fn to_parameter(&self) -> Parameter {
        match self {
            Self::Service(service) => service.to_parameter(),
            Self::Agent(agent) => agent.to_parameter(),
            Self::Role(role) => role.to_parameter(),
        }
    }
}

/// Since when the first rows wait for their removal; `None` if there is nothing to remove.
pub async fn oldest_due(conn: &mut Conn, kind: DeletedKind) -> Result<Option<Timestamp>, StoreError> {
    let sql = match kind {
        DeletedKind::Services => OLDEST_SERVICE,
        DeletedKind::Agents => OLDEST_AGENT,
        DeletedKind::Roles => OLDEST_ROLE,
    };
    conn.find_oldest(sql, params![]).await
}

/// Lists up to `limit` deleted services, agents or roles whose rows must be removed at `now`, the earliest first.
pub async fn list_due(
    conn: &mut Conn,
    kind: DeletedKind,
    now: Timestamp,
    limit: i64,
) -> Result<Vec<Deleted>, StoreError> {
    let sql = match kind {
        DeletedKind::Services => LIST_SERVICES_TO_PURGE,
        DeletedKind::Agents => LIST_AGENTS_TO_PURGE,
        DeletedKind::Roles => LIST_ROLES_TO_PURGE,
    };
    let deleted_from_row = |row: &AnyRow| match kind {
        DeletedKind::Services => row::parse(row, "id").map(Deleted::Service),
        DeletedKind::Agents => row::parse(row, "id").map(Deleted::Agent),
        DeletedKind::Roles => row::parse(row, "id").map(Deleted::Role),
    };
    conn.list_rows(sql, params![now, limit], deleted_from_row).await
}

/// Removes and returns up to `limit` assignments of a deleted service, agent or role.
pub async fn take_assignments(
    conn: &mut Conn,
    deleted: Deleted,
    limit: i64,
) -> Result<Vec<TakenAssignment>, StoreError> {
    let sql = match deleted {
        Deleted::Service(_) => TAKE_ASSIGNMENTS_OF_SERVICE,
        Deleted::Agent(_) => TAKE_ASSIGNMENTS_OF_AGENT,
        Deleted::Role(_) => TAKE_ASSIGNMENTS_OF_ROLE,
    };
    conn.list_rows(sql, params![deleted, limit], assignment_from_row).await
}

/// Removes up to `limit` dependent rows that are not assignments. Returns the number of removed rows. The caller must remove the
/// assignments before, because they refer to the roles.
pub async fn delete_dependants(conn: &mut Conn, deleted: Deleted, limit: i64) -> Result<u64, StoreError> {
    let statements: &[&'static str] = match deleted {
        Deleted::Service(_) => &[DELETE_DEPARTURES_FROM_SERVICE, DELETE_KEYS_OF_SERVICE, DELETE_ROLES_OF_SERVICE],
        Deleted::Agent(_) => &[DELETE_DEPARTURES_OF_AGENT, DELETE_CONTACTS_OF_AGENT],
        Deleted::Role(_) => &[],
    };
    let mut removed = 0;
    for &sql in statements {
        removed += conn.count_changes(sql, params![deleted, limit.saturating_sub_unsigned(removed)]).await?;
    }
    Ok(removed)
}

/// Records that all rows of a service or an agent are removed, or deletes the row of a role. If the deletion is younger than
/// `margin`, a transaction that began before it may still insert rows. Then we remove the rows of a service or an agent once more
/// when the margin has passed.
pub async fn finish(conn: &mut Conn, deleted: Deleted, now: Timestamp, margin: Duration) -> Result<(), StoreError> {
    let sql = match deleted {
        Deleted::Service(_) => FINISH_SERVICE,
        Deleted::Agent(_) => FINISH_AGENT,
        Deleted::Role(role) => return conn.apply(DELETE_ROLE, params![role]).await,
    };
    conn.apply(sql, params![now.saturating_sub(margin), margin, deleted]).await
}

fn assignment_from_row(row: &AnyRow) -> Result<TakenAssignment, StoreError> {
    Ok(TakenAssignment {
        agent: row::parse(row, "agent_id")?,
        service: row::parse(row, "service_id")?,
        role: row::parse(row, "role_id")?,
        name: row::convert(row, "name")?,
        role_deleted_at: row::optional_timestamp(row, "role_deleted_at")?,
        expires_at: row::optional_timestamp(row, "expires_at")?,
        expiry_reported: row::optional_timestamp(row, "expiry_reported_at")?.is_some(),
    })
}
