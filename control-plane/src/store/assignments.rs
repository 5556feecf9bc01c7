//! Role assignments: the roles that agents hold, with an optional expiry. All reads treat an expired assignment as absent.

use super::{Conn, StoreError, row, statements::statements};
use crate::domain::{change::RevisionRange, role::Assignment, webhook::event::RevocationReason};
use countersign_identity::{AgentId, RoleGrant, RoleId, RoleName, ServiceId, Timestamp};
use sqlx::{AssertSqlSafe, any::AnyRow};

statements! { STATEMENTS:
    /// An assignment that had expired starts anew.
    UPSERT = "INSERT INTO assignments (agent_id, role_id, service_id, assigned_at, expires_at) VALUES ($1, $2, $3, $4, $5) \
         ON CONFLICT (agent_id, role_id) DO UPDATE SET expires_at = excluded.expires_at, end_told_at = NULL, assigned_at = \
         CASE WHEN assignments.expires_at <= excluded.assigned_at THEN excluded.assigned_at ELSE assignments.assigned_at END";
    REMOVE = "DELETE FROM assignments WHERE agent_id = $1 AND role_id = $2 AND service_id = $3 \
         RETURNING expires_at, end_told_at";
    INSERT_LOSSES = "INSERT INTO webhook_losses (agent_id, service_id, role_id, role_name, lost_at, reason) \
         SELECT agent_id, service_id, role_id, $1, CASE WHEN expires_at <= $2 THEN expires_at ELSE $2 END, \
         CASE WHEN expires_at <= $2 THEN $3 ELSE $4 END FROM assignments \
         WHERE role_id = $5 AND service_id = $6 AND end_told_at IS NULL";
    REMOVE_BY_ROLE = "DELETE FROM assignments WHERE role_id = $1 AND service_id = $2";
    ANY_LOSSES = "SELECT 1 AS one FROM webhook_losses LIMIT 1";
    TAKE_LOSSES = "DELETE FROM webhook_losses WHERE (agent_id, role_id) IN (SELECT agent_id, role_id FROM webhook_losses \
         LIMIT $1) RETURNING agent_id, service_id, role_id, role_name, lost_at, reason";
    MARK_EXPIRY_NOTIFIED = "UPDATE assignments SET end_told_at = $1 WHERE agent_id = $2 AND role_id = $3 AND expires_at <= $1 \
         AND end_told_at IS NULL RETURNING expires_at";
    ANY_UNNOTIFIED_EXPIRIES = "SELECT 1 AS ended FROM assignments WHERE expires_at <= $1 AND end_told_at IS NULL LIMIT 1";
    /// The outer conditions repeat the inner ones, because another transaction may prolong an assignment between the two.
    TAKE_EXPIRED = "UPDATE assignments SET end_told_at = $1 WHERE expires_at <= $1 AND end_told_at IS NULL \
         AND (agent_id, role_id) IN (SELECT agent_id, role_id FROM assignments \
         WHERE expires_at <= $1 AND end_told_at IS NULL ORDER BY expires_at LIMIT $2) \
         RETURNING agent_id, role_id, service_id, expires_at";
    ACTIVE_GRANTS = "SELECT role_id, expires_at FROM assignments WHERE agent_id = $1 AND service_id = $2 \
         AND (expires_at IS NULL OR expires_at > $3) ORDER BY role_id";
    /// [`active_grants_of_statement`] completes it with a list of agents.
    ACTIVE_GRANTS_OF = "SELECT agent_id, role_id, expires_at FROM assignments WHERE service_id = $1 \
         AND (expires_at IS NULL OR expires_at > $2)";
    CHANGED_GRANTS = "SELECT a.service_id, a.agent_id, a.role_id, a.expires_at FROM \
         (SELECT DISTINCT subject, service_id FROM changes WHERE facet = 'roles' \
          AND revision > $1 AND revision <= $2 AND ($3 = '' OR service_id = $3)) c \
         JOIN assignments a ON a.agent_id = c.subject AND a.service_id = c.service_id";
    SERVICE_OF_OLDEST_ROLE = "SELECT service_id FROM assignments WHERE agent_id = $1 \
         AND (expires_at IS NULL OR expires_at > $2) ORDER BY assigned_at, role_id LIMIT 1";
}

/// An assignment that has expired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpiredAssignment {
    /// The agent that held the role.
    pub agent: AgentId,
    /// The role.
    pub role: RoleId,
    /// The service of the role.
    pub service: ServiceId,
    /// Time of expiry.
    pub at: Timestamp,
}

/// An assignment that was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemovedAssignment {
    /// Its expiry, in the past or the future; `None` if it had none.
    pub expires_at: Option<Timestamp>,
    /// Whether a webhook event reported its expiry.
    pub expiry_notified: bool,
}

/// Assigns a role, or replaces the expiry of an existing assignment.
pub async fn upsert(conn: &mut Conn, assignment: &Assignment) -> Result<(), StoreError> {
    sqlx::query(UPSERT)
        .bind(assignment.agent.to_string())
        .bind(assignment.role.to_string())
        .bind(assignment.service.to_string())
        .bind(assignment.assigned_at.micros())
        .bind(assignment.expires_at.map(Timestamp::micros))
        .execute(conn)
        .await?;
    Ok(())
}

/// Removes an assignment, expired or not.
pub async fn remove(
    conn: &mut Conn,
    service: ServiceId,
    agent: AgentId,
    role: RoleId,
) -> Result<Option<RemovedAssignment>, StoreError> {
    let query = sqlx::query(REMOVE).bind(agent.to_string()).bind(role.to_string()).bind(service.to_string());
    let read = |row: AnyRow| {
        let expires_at = row::optional_timestamp(&row, "expires_at")?;
        let expiry_notified = row::optional_timestamp(&row, "end_told_at")?.is_some();
        Ok(RemovedAssignment { expires_at, expiry_notified })
    };
    query.fetch_optional(conn).await?.map(read).transpose()
}

/// Removes all assignments of a role. With `notify_as`, the name of the role, queues a [`RoleLoss`] for each, from which
/// webhook events are made later.
pub async fn remove_by_role(
    conn: &mut Conn,
    (service, role): (ServiceId, RoleId),
    notify_as: Option<&RoleName>,
    now: Timestamp,
) -> Result<(), StoreError> {
    if let Some(name) = notify_as {
        let query = sqlx::query(INSERT_LOSSES).bind(name.as_str()).bind(now.micros());
        let query = query.bind(RevocationReason::Expired.as_str()).bind(RevocationReason::RoleDeleted.as_str());
        query.bind(role.to_string()).bind(service.to_string()).execute(&mut *conn).await?;
    }
    sqlx::query(REMOVE_BY_ROLE).bind(role.to_string()).bind(service.to_string()).execute(conn).await?;
    Ok(())
}

/// Marks the expiry of one assignment as reported to webhooks, if it has expired and is not marked; returns its expiry.
pub async fn mark_expiry_notified(
    conn: &mut Conn,
    agent: AgentId,
    role: RoleId,
    now: Timestamp,
) -> Result<Option<Timestamp>, StoreError> {
    let query = sqlx::query(MARK_EXPIRY_NOTIFIED).bind(now.micros()).bind(agent.to_string()).bind(role.to_string());
    query.fetch_optional(conn).await?.map(|row| row::timestamp(&row, "expires_at")).transpose()
}

/// The loss of a role by an agent, queued for a webhook event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleLoss {
    /// The agent that held the role.
    pub agent: AgentId,
    /// The service of the role.
    pub service: ServiceId,
    /// The role.
    pub role: RoleId,
    /// Name of the role, which may be deleted.
    pub name: RoleName,
    /// Time of the loss.
    pub at: Timestamp,
    /// Cause of the loss.
    pub reason: RevocationReason,
}

/// Whether any role losses are queued.
pub async fn any_losses(conn: &mut Conn) -> Result<bool, StoreError> {
    Ok(sqlx::query(ANY_LOSSES).fetch_optional(conn).await?.is_some())
}

/// Removes at most this many role losses from the queue. Concurrent transactions get different ones.
pub async fn take_losses(conn: &mut Conn, at_most: i64) -> Result<Vec<RoleLoss>, StoreError> {
    let rows = sqlx::query(TAKE_LOSSES).bind(at_most).fetch_all(conn).await?;
    let read = |row| {
        let reason =
            RevocationReason::parse(&row::get::<String>(row, "reason")?).ok_or(StoreError::Corrupt("reason"))?;
        Ok(RoleLoss {
            agent: row::parse(row, "agent_id")?,
            service: row::parse(row, "service_id")?,
            role: row::parse(row, "role_id")?,
            name: row::convert(row, "role_name")?,
            at: row::timestamp(row, "lost_at")?,
            reason,
        })
    };
    rows.iter().map(read).collect()
}

/// Whether any assignment has expired without a webhook event.
pub async fn any_unnotified_expiries(conn: &mut Conn, now: Timestamp) -> Result<bool, StoreError> {
    Ok(sqlx::query(ANY_UNNOTIFIED_EXPIRIES).bind(now.micros()).fetch_optional(conn).await?.is_some())
}

/// Marks expired assignments as reported to webhooks and returns them. Concurrent transactions get different ones. The rows
/// stay, because sidecars apply the expiry by their own clocks.
pub async fn take_expired(conn: &mut Conn, now: Timestamp, at_most: i64) -> Result<Vec<ExpiredAssignment>, StoreError> {
    let rows = sqlx::query(TAKE_EXPIRED).bind(now.micros()).bind(at_most).fetch_all(conn).await?;
    let read = |row| {
        Ok(ExpiredAssignment {
            agent: row::parse(row, "agent_id")?,
            role: row::parse(row, "role_id")?,
            service: row::parse(row, "service_id")?,
            at: row::timestamp(row, "expires_at")?,
        })
    };
    rows.iter().map(read).collect()
}

/// The roles that an agent holds at a service at `now`.
pub async fn active_grants(
    conn: &mut Conn,
    service: ServiceId,
    agent: AgentId,
    now: Timestamp,
) -> Result<Vec<RoleGrant>, StoreError> {
    let query = sqlx::query(ACTIVE_GRANTS).bind(agent.to_string()).bind(service.to_string()).bind(now.micros());
    query.fetch_all(conn).await?.iter().map(read_grant).collect()
}

/// The roles that several agents hold at a service at `now`.
pub async fn active_grants_of(
    conn: &mut Conn,
    service: ServiceId,
    agents: &[AgentId],
    now: Timestamp,
) -> Result<Vec<(AgentId, RoleGrant)>, StoreError> {
    if agents.is_empty() {
        return Ok(Vec::new());
    }
    let sql = active_grants_of_statement(agents.len());
    let query = sqlx::query(AssertSqlSafe(sql)).bind(service.to_string()).bind(now.micros());
    let query = agents.iter().fold(query, |query, agent| query.bind(agent.to_string()));
    let read = |row| Ok((row::parse(row, "agent_id")?, read_grant(row)?));
    query.fetch_all(conn).await?.iter().map(read).collect()
}

fn active_grants_of_statement(agents: usize) -> String {
    let placeholders: Vec<_> = (3..3 + agents).map(|number| format!("${number}")).collect();
    format!("{ACTIVE_GRANTS_OF} AND agent_id IN ({}) ORDER BY role_id", placeholders.join(", "))
}

/// Statements with lists of different lengths, for the conformance tests.
#[cfg(test)]
pub(super) fn composed_statements() -> Vec<String> {
    [1, 2, 200].map(active_grants_of_statement).to_vec()
}

/// The current roles of all agents whose roles changed within a range of revisions. Expired ones are included, because the
/// caller compares the expiry with its own clock.
pub async fn changed_grants(
    conn: &mut Conn,
    range: RevisionRange,
    only: Option<ServiceId>,
) -> Result<Vec<(ServiceId, AgentId, RoleGrant)>, StoreError> {
    let only = only.map_or(String::new(), |service| service.to_string());
    let query = sqlx::query(CHANGED_GRANTS).bind(range.since.number()).bind(range.until.number()).bind(only);
    let rows = query.fetch_all(conn).await?;
    let read = |row| Ok((row::parse(row, "service_id")?, row::parse(row, "agent_id")?, read_grant(row)?));
    rows.iter().map(read).collect()
}

/// The service of the oldest role that the agent holds: the default audience of its tokens.
pub async fn service_of_oldest_role(
    conn: &mut Conn,
    agent: AgentId,
    now: Timestamp,
) -> Result<Option<ServiceId>, StoreError> {
    let query = sqlx::query(SERVICE_OF_OLDEST_ROLE).bind(agent.to_string()).bind(now.micros());
    query.fetch_optional(conn).await?.map(|row| row::parse(&row, "service_id")).transpose()
}

fn read_grant(row: &AnyRow) -> Result<RoleGrant, StoreError> {
    Ok(RoleGrant { role: row::parse(row, "role_id")?, until: row::optional_timestamp(row, "expires_at")? })
}
