//! Role assignments: the roles that agents hold, with an optional expiry. Queries treat an expired assignment as absent.

use super::{
    Conn, StoreError, query::params, retention::ExpiringRows, row, row_lists::row_list_statements,
    statements::statements,
};
use crate::domain::{role::Assignment, text::ManagedBy};
use countersign_identity::{AgentId, RoleGrant, RoleId, ServiceId, Timestamp};
use sqlx::any::AnyRow;
use std::time::Duration;

/// The condition that the role of an assignment is not deleted. Background work removes the assignments of a deleted role later.
macro_rules! is_of_live_role {
    () => {
        "NOT EXISTS (SELECT 1 FROM roles r WHERE r.id = assignments.role_id AND r.deleted_at IS NOT NULL)"
    };
}
pub(super) use is_of_live_role;

statements! { STATEMENTS:
    /// If the existing assignment of a role has expired, `assigned_at` and `managed_by` come from the new assignment.
    UPSERT_ASSIGNMENT = "INSERT INTO assignments (agent_id, role_id, service_id, assigned_at, expires_at, managed_by) \
         VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (agent_id, role_id) DO UPDATE SET \
         expires_at = excluded.expires_at, expiry_reported_at = NULL, assigned_at = \
         CASE WHEN assignments.expires_at <= excluded.assigned_at THEN excluded.assigned_at ELSE assignments.assigned_at END, \
         managed_by = CASE WHEN assignments.expires_at <= excluded.assigned_at THEN excluded.managed_by \
         ELSE COALESCE(excluded.managed_by, assignments.managed_by) END";
    /// `service_id || ''` keeps the databases from using the index of the service, which may have many assignments.
    DELETE_ASSIGNMENT = "DELETE FROM assignments WHERE agent_id = $1 AND role_id = $2 AND service_id || '' = $3 \
         RETURNING expires_at, expiry_reported_at";
    /// Without the unary plus, a database could use the index of expiries, and read the expiries of all services.
    MARK_EXPIRY_REPORTED = "UPDATE assignments SET expiry_reported_at = $1 WHERE agent_id = $2 AND role_id = $3 \
         AND +expires_at <= $1 AND +expiry_reported_at IS NULL RETURNING expires_at";
    ANY_UNREPORTED_EXPIRY = "SELECT 1 AS ended FROM assignments WHERE expires_at <= $1 AND expiry_reported_at IS NULL LIMIT 1";
    /// The UPDATE repeats the conditions of its inner SELECT, because another transaction may extend an assignment between the
    /// SELECT and the UPDATE.
    TAKE_UNREPORTED_EXPIRIES = "UPDATE assignments SET expiry_reported_at = $1 WHERE expires_at <= $1 AND expiry_reported_at IS NULL \
         AND (agent_id, role_id) IN (SELECT agent_id, role_id FROM assignments \
         WHERE expires_at <= $1 AND expiry_reported_at IS NULL ORDER BY expires_at LIMIT $2 + 0) \
         RETURNING agent_id, role_id, service_id, expires_at";
    OLDEST_REPORTED_EXPIRY = "SELECT MIN(expires_at) AS oldest FROM assignments \
         WHERE expiry_reported_at IS NOT NULL AND expires_at >= $1";
    /// The DELETE repeats the conditions of its inner SELECT, because another transaction may extend an assignment between the
    /// SELECT and the DELETE. Without the unary plus, SQLite would read all expired rows again for the DELETE.
    DELETE_REPORTED_EXPIRIES = "DELETE FROM assignments WHERE (agent_id, role_id) IN (SELECT agent_id, role_id FROM assignments \
         WHERE expiry_reported_at IS NOT NULL AND expires_at >= $1 AND expires_at <= $2 ORDER BY expires_at LIMIT $3 + 0) \
         AND +expiry_reported_at IS NOT NULL AND +expires_at <= $2";
    LIST_ACTIVE_GRANTS = concat!(
        "SELECT role_id, expires_at FROM assignments WHERE agent_id = $1 AND service_id = $2 \
         AND (expires_at IS NULL OR expires_at > $3) AND ", is_of_live_role!(), " ORDER BY role_id"
    );
}

row_list_statements! { ROW_LISTS:
    LIST_ACTIVE_GRANTS_OF_AGENTS = concat!(
        "SELECT agent_id, role_id, expires_at, managed_by FROM assignments WHERE service_id = $1 \
         AND (expires_at IS NULL OR expires_at > $2) AND agent_id IN ({$3}) AND ", is_of_live_role!(), " ORDER BY role_id"
    );
}

/// An assignment that has expired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpiredAssignment {
    /// The agent that held the role.
    pub agent: AgentId,
    pub role: RoleId,
    pub service: ServiceId,
    /// Time of expiry.
    pub at: Timestamp,
}

/// An assignment that was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemovedAssignment {
    /// Expiry of the assignment, in the past or the future; `None` if it had no expiry.
    pub expires_at: Option<Timestamp>,
    /// Whether a webhook event has reported the expiry.
    pub expiry_reported: bool,
}

/// Assigns a role, or replaces the expiry of the existing assignment.
pub async fn upsert(conn: &mut Conn, assignment: &Assignment) -> Result<(), StoreError> {
    let Assignment { agent, role, service, assigned_at, expires_at, managed_by } = assignment;
    conn.apply(UPSERT_ASSIGNMENT, params![agent, role, service, assigned_at, expires_at, managed_by]).await
}

/// Removes the assignment of a role of a service, expired or not. Returns `None` if there was no such assignment.
pub async fn remove(
    conn: &mut Conn,
    service: ServiceId,
    agent: AgentId,
    role: RoleId,
) -> Result<Option<RemovedAssignment>, StoreError> {
    let removed_from_row = |row: &AnyRow| {
        let expires_at = row::optional_timestamp(row, "expires_at")?;
        let expiry_reported = row::optional_timestamp(row, "expiry_reported_at")?.is_some();
        Ok(RemovedAssignment { expires_at, expiry_reported })
    };
    conn.find_row(DELETE_ASSIGNMENT, params![agent, role, service], removed_from_row).await
}

/// Marks the expiry of an assignment as reported to webhooks. Returns the expiry if the assignment has expired and was not marked
/// before.
pub async fn mark_expiry_reported(
    conn: &mut Conn,
    agent: AgentId,
    role: RoleId,
    now: Timestamp,
) -> Result<Option<Timestamp>, StoreError> {
    conn.find_row(MARK_EXPIRY_REPORTED, params![now, agent, role], |row| row::timestamp(row, "expires_at")).await
}

/// Whether there is an expired assignment that was not reported to webhooks.
pub async fn has_unreported_expiries(conn: &mut Conn, now: Timestamp) -> Result<bool, StoreError> {
    conn.has_row(ANY_UNREPORTED_EXPIRY, params![now]).await
}

/// Marks up to `limit` expired assignments as reported to webhooks and returns them. Concurrent transactions get different
/// assignments. We keep the rows for a while, because sidecars apply the expiry by their own clocks.
pub async fn take_unreported_expiries(
    conn: &mut Conn,
    now: Timestamp,
    limit: i64,
) -> Result<Vec<ExpiredAssignment>, StoreError> {
    let expired_from_row = |row: &AnyRow| {
        Ok(ExpiredAssignment {
            agent: row::parse(row, "agent_id")?,
            role: row::parse(row, "role_id")?,
            service: row::parse(row, "service_id")?,
            at: row::timestamp(row, "expires_at")?,
        })
    };
    conn.list_rows(TAKE_UNREPORTED_EXPIRIES, params![now, limit], expired_from_row).await
}

/// How long we keep the row of an assignment after its expiry, for sidecars whose clocks are behind.
pub const KEPT_AFTER_EXPIRY: Duration = Duration::from_hours(24);

/// Expired assignments whose expiry was reported to webhooks.
pub const EXPIRED: ExpiringRows =
    ExpiringRows { oldest: OLDEST_REPORTED_EXPIRY, delete: DELETE_REPORTED_EXPIRIES, kept: KEPT_AFTER_EXPIRY };

/// Lists the roles that an agent holds at a service at `now`.
pub async fn list_active_grants(
    conn: &mut Conn,
    service: ServiceId,
    agent: AgentId,
    now: Timestamp,
) -> Result<Vec<RoleGrant>, StoreError> {
    conn.list_rows(LIST_ACTIVE_GRANTS, params![agent, service, now], grant_from_row).await
}

/// A role that an agent holds, and the label of the files that declare it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManagedGrant {
    /// The role, and until when the agent holds it.
    pub grant: RoleGrant,
    /// The label of the files that declare the assignment (`managedBy`), if any.
    pub managed_by: Option<ManagedBy>,
}

/// Lists the roles that several agents hold at a service at `now`.
pub async fn list_active_grants_of_agents(
    conn: &mut Conn,
    service: ServiceId,
    agents: &[AgentId],
    now: Timestamp,
) -> Result<Vec<(AgentId, ManagedGrant)>, StoreError> {
    let agents = agents.iter().map(|agent| params![agent]);
    let managed_grant = |row: &AnyRow| {
        let grant = ManagedGrant { grant: grant_from_row(row)?, managed_by: row::convert_optional(row, "managed_by")? };
        Ok((row::parse(row, "agent_id")?, grant))
    };
    LIST_ACTIVE_GRANTS_OF_AGENTS.list_rows(conn, &params![service, now], agents, managed_grant).await
}

fn grant_from_row(row: &AnyRow) -> Result<RoleGrant, StoreError> {
    Ok(RoleGrant { role: row::parse(row, "role_id")?, until: row::optional_timestamp(row, "expires_at")? })
}
