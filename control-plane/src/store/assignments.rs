//! Which agent holds which role, and until when. An expired assignment is absent everywhere.

use super::{Conn, StoreError, row};
use crate::domain::{change::RevisionRange, role::Assignment, webhook::event::RevocationReason};
use countersign_identity::{AgentId, RoleGrant, RoleId, RoleName, ServiceId, Timestamp};
use sqlx::any::AnyRow;

/// An assignment that has ended.
#[derive(Debug, Clone, Copy)]
pub struct Ended {
    /// Whose it was.
    pub agent: AgentId,
    /// Of what.
    pub role: RoleId,
    /// Where.
    pub service: ServiceId,
    /// When it ended.
    pub at: Timestamp,
}

/// What was removed.
#[derive(Debug, Clone, Copy)]
pub struct Removed {
    /// When it ends or ended, if it does.
    pub until: Option<Timestamp>,
    /// Whether webhooks know that it has.
    pub end_is_told: bool,
}

/// Assigns a role, or replaces when an assignment ends. One that had ended begins anew.
pub async fn put(conn: &mut Conn, assignment: &Assignment) -> Result<(), StoreError> {
    let sql = "INSERT INTO assignments (agent_id, role_id, service_id, assigned_at, expires_at) VALUES ($1, $2, $3, $4, $5) \
               ON CONFLICT (agent_id, role_id) DO UPDATE SET expires_at = excluded.expires_at, end_told_at = NULL, assigned_at = \
               CASE WHEN assignments.expires_at <= excluded.assigned_at THEN excluded.assigned_at ELSE assignments.assigned_at END";
    sqlx::query(sql)
        .bind(assignment.agent.to_string())
        .bind(assignment.role.to_string())
        .bind(assignment.service.to_string())
        .bind(assignment.assigned_at.micros())
        .bind(assignment.expires_at.map(Timestamp::micros))
        .execute(conn)
        .await?;
    Ok(())
}

/// Removes an assignment; gives what was removed, expired or not.
pub async fn remove(
    conn: &mut Conn,
    service: ServiceId,
    agent: AgentId,
    role: RoleId,
) -> Result<Option<Removed>, StoreError> {
    let sql = "DELETE FROM assignments WHERE agent_id = $1 AND role_id = $2 AND service_id = $3 \
               RETURNING expires_at, end_told_at";
    let query = sqlx::query(sql).bind(agent.to_string()).bind(role.to_string()).bind(service.to_string());
    let read = |found: AnyRow| {
        let until = row::optional_instant(&found, "expires_at")?;
        Ok(Removed { until, end_is_told: row::optional_instant(&found, "end_told_at")?.is_some() })
    };
    query.fetch_optional(conn).await?.map(read).transpose()
}

/// Removes all assignments of a role. If somebody is to be told whose they were, that is kept until they are.
pub async fn remove_all(
    conn: &mut Conn,
    (service, role): (ServiceId, RoleId),
    told_as: Option<&RoleName>,
    now: Timestamp,
) -> Result<(), StoreError> {
    if let Some(name) = told_as {
        let sql = "INSERT INTO webhook_losses (agent_id, service_id, role_id, role_name, lost_at, reason) \
                   SELECT agent_id, service_id, role_id, $1, CASE WHEN expires_at <= $2 THEN expires_at ELSE $2 END, \
                   CASE WHEN expires_at <= $2 THEN $3 ELSE $4 END FROM assignments \
                   WHERE role_id = $5 AND service_id = $6 AND end_told_at IS NULL";
        let query = sqlx::query(sql).bind(name.as_str()).bind(now.micros());
        let query = query.bind(RevocationReason::Expired.as_str()).bind(RevocationReason::RoleDeleted.as_str());
        query.bind(role.to_string()).bind(service.to_string()).execute(&mut *conn).await?;
    }
    let sql = "DELETE FROM assignments WHERE role_id = $1 AND service_id = $2";
    sqlx::query(sql).bind(role.to_string()).bind(service.to_string()).execute(conn).await?;
    Ok(())
}

/// Notes that webhooks are told of the end of one assignment, if it has ended and they are not; gives when.
pub async fn take_one_end(
    conn: &mut Conn,
    agent: AgentId,
    role: RoleId,
    now: Timestamp,
) -> Result<Option<Timestamp>, StoreError> {
    let sql = "UPDATE assignments SET end_told_at = $1 WHERE agent_id = $2 AND role_id = $3 AND expires_at <= $1 \
               AND end_told_at IS NULL RETURNING expires_at";
    let query = sqlx::query(sql).bind(now.micros()).bind(agent.to_string()).bind(role.to_string());
    query.fetch_optional(conn).await?.map(|found| row::instant(&found, "expires_at")).transpose()
}

/// A role that an agent lost.
#[derive(Debug, Clone)]
pub struct Loss {
    /// Whose it was.
    pub agent: AgentId,
    /// Where.
    pub service: ServiceId,
    /// Of what.
    pub role: RoleId,
    /// Its name.
    pub name: RoleName,
    /// When.
    pub at: Timestamp,
    /// Why.
    pub reason: RevocationReason,
}

/// Whether anybody is to be told of roles that were lost.
pub async fn any_losses(conn: &mut Conn) -> Result<bool, StoreError> {
    Ok(sqlx::query("SELECT 1 AS one FROM webhook_losses LIMIT 1").fetch_optional(conn).await?.is_some())
}

/// Takes some of the roles that were lost. Nobody else takes the same.
pub async fn take_losses(conn: &mut Conn, at_most: i64) -> Result<Vec<Loss>, StoreError> {
    let sql = "DELETE FROM webhook_losses WHERE (agent_id, role_id) IN (SELECT agent_id, role_id FROM webhook_losses \
               LIMIT $1) RETURNING agent_id, service_id, role_id, role_name, lost_at, reason";
    let rows = sqlx::query(sql).bind(at_most).fetch_all(conn).await?;
    let read = |found| {
        let reason =
            RevocationReason::parse(&row::get::<String>(found, "reason")?).ok_or(StoreError::Corrupt("reason"))?;
        Ok(Loss {
            agent: row::parse(found, "agent_id")?,
            service: row::parse(found, "service_id")?,
            role: row::parse(found, "role_id")?,
            name: row::convert(found, "role_name")?,
            at: row::instant(found, "lost_at")?,
            reason,
        })
    };
    rows.iter().map(read).collect()
}

/// Whether webhooks are to be told of any assignment that has ended.
pub async fn any_ends(conn: &mut Conn, now: Timestamp) -> Result<bool, StoreError> {
    let sql = "SELECT 1 AS ended FROM assignments WHERE expires_at <= $1 AND end_told_at IS NULL LIMIT 1";
    Ok(sqlx::query(sql).bind(now.micros()).fetch_optional(conn).await?.is_some())
}

/// Notes of some assignments that webhooks are told of their ends, and gives them. Nobody else does the same. The rows stay,
/// for sidecars go by their own clocks.
pub async fn take_ends(conn: &mut Conn, now: Timestamp, at_most: i64) -> Result<Vec<Ended>, StoreError> {
    // Asked twice, since somebody may prolong one between the two.
    let sql = "UPDATE assignments SET end_told_at = $1 WHERE expires_at <= $1 AND end_told_at IS NULL \
               AND (agent_id, role_id) IN (SELECT agent_id, role_id FROM assignments \
               WHERE expires_at <= $1 AND end_told_at IS NULL ORDER BY expires_at LIMIT $2) \
               RETURNING agent_id, role_id, service_id, expires_at";
    let rows = sqlx::query(sql).bind(now.micros()).bind(at_most).fetch_all(conn).await?;
    let read = |found| {
        let (agent, role) = (row::parse(found, "agent_id")?, row::parse(found, "role_id")?);
        Ok(Ended { agent, role, service: row::parse(found, "service_id")?, at: row::instant(found, "expires_at")? })
    };
    rows.iter().map(read).collect()
}

/// What an agent holds at a service at `now`.
pub async fn held(
    conn: &mut Conn,
    service: ServiceId,
    agent: AgentId,
    now: Timestamp,
) -> Result<Vec<RoleGrant>, StoreError> {
    let sql = "SELECT role_id, expires_at FROM assignments WHERE agent_id = $1 AND service_id = $2 \
               AND (expires_at IS NULL OR expires_at > $3) ORDER BY role_id";
    let query = sqlx::query(sql).bind(agent.to_string()).bind(service.to_string()).bind(now.micros());
    query.fetch_all(conn).await?.iter().map(read_grant).collect()
}

/// What several agents hold at a service at `now`.
pub async fn held_by(
    conn: &mut Conn,
    service: ServiceId,
    agents: &[AgentId],
    now: Timestamp,
) -> Result<Vec<(AgentId, RoleGrant)>, StoreError> {
    if agents.is_empty() {
        return Ok(Vec::new());
    }
    let places: Vec<_> = (3..3 + agents.len()).map(|place| format!("${place}")).collect();
    let sql = format!(
        "SELECT agent_id, role_id, expires_at FROM assignments WHERE service_id = $1 \
         AND (expires_at IS NULL OR expires_at > $2) AND agent_id IN ({}) ORDER BY role_id",
        places.join(", ")
    );
    let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(service.to_string()).bind(now.micros());
    let query = agents.iter().fold(query, |query, agent| query.bind(agent.to_string()));
    let read = |found| Ok((row::parse(found, "agent_id")?, read_grant(found)?));
    query.fetch_all(conn).await?.iter().map(read).collect()
}

/// What all agents hold now whose roles changed in a stretch of the feed, with the ends: whoever reads this
/// applies them at its own time.
pub async fn changed(
    conn: &mut Conn,
    range: RevisionRange,
    only: Option<ServiceId>,
) -> Result<Vec<(ServiceId, AgentId, RoleGrant)>, StoreError> {
    let sql = "SELECT a.service_id, a.agent_id, a.role_id, a.expires_at FROM \
               (SELECT DISTINCT subject, service_id FROM changes WHERE facet = 'roles' \
                AND revision > $1 AND revision <= $2 AND ($3 = '' OR service_id = $3)) c \
               JOIN assignments a ON a.agent_id = c.subject AND a.service_id = c.service_id";
    let only = only.map_or(String::new(), |service| service.to_string());
    let query = sqlx::query(sql).bind(range.since.number()).bind(range.until.number()).bind(only);
    let rows = query.fetch_all(conn).await?;
    let read = |found| Ok((row::parse(found, "service_id")?, row::parse(found, "agent_id")?, read_grant(found)?));
    rows.iter().map(read).collect()
}

/// The service of the agent's oldest live role: whom its tokens are for, if it does not say.
pub async fn oldest_service(conn: &mut Conn, agent: AgentId, now: Timestamp) -> Result<Option<ServiceId>, StoreError> {
    let sql = "SELECT service_id FROM assignments WHERE agent_id = $1 AND (expires_at IS NULL OR expires_at > $2) \
               ORDER BY assigned_at, role_id LIMIT 1";
    let found = sqlx::query(sql).bind(agent.to_string()).bind(now.micros()).fetch_optional(conn).await?;
    found.map(|found| row::parse(&found, "service_id")).transpose()
}

fn read_grant(found: &AnyRow) -> Result<RoleGrant, StoreError> {
    Ok(RoleGrant { role: row::parse(found, "role_id")?, until: row::optional_instant(found, "expires_at")? })
}
