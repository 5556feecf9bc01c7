//! What happened, on its way to those who asked for it: committed with what it reports.

use super::{StoreError, row};
use crate::domain::webhook::{
    event::{Concerns, Event, EventKind},
    storm::Storm,
};
use countersign_identity::{AgentId, EventId, ServiceId, Timestamp, WebhookId};
use sqlx::{Any, AnyConnection, any::AnyArguments, query::Query};

/// The targets that get an event: of its service or of the deployment, and they asked for its kind. An event of no
/// service goes to the services where the agent holds a live role. Of $1 to $4, one or two are empty.
const GET_IT: &str = "t.deleted_at IS NULL AND (t.events = '' OR t.events LIKE $1) AND (t.service_id IS NULL \
                      OR t.service_id = $2 OR ($3 <> '' AND t.service_id IN (SELECT a.service_id FROM assignments a \
                      WHERE a.agent_id = $3 AND (a.expires_at IS NULL OR a.expires_at > $4))))";

type Bound<'q> = Query<'q, Any, AnyArguments>;

/// Whether anybody gets an event of this kind.
pub async fn is_wanted(
    conn: &mut AnyConnection,
    kind: EventKind,
    concerns: Concerns,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let sql = format!("SELECT 1 AS wanted FROM webhook_targets t WHERE {GET_IT} LIMIT 1");
    let query = who_gets(sqlx::query(sqlx::AssertSqlSafe(sql)), kind, concerns, now);
    Ok(query.fetch_optional(conn).await?.is_some())
}

/// Puts an event on its way to whoever gets it; false if nobody does, and then nothing is kept.
pub async fn tell(conn: &mut AnyConnection, event: &Event, now: Timestamp) -> Result<bool, StoreError> {
    let Some(concerns) = event.news.concerns() else { return Ok(false) };
    let sql = format!(
        "INSERT INTO webhook_deliveries (event_id, target_id, due_at, attempts) \
         SELECT $5, t.id, $4, 0 FROM webhook_targets t WHERE {GET_IT}"
    );
    let query = who_gets(sqlx::query(sqlx::AssertSqlSafe(sql)), event.news.kind(), concerns, now);
    if query.bind(event.id.to_string()).execute(&mut *conn).await?.rows_affected() == 0 {
        return Ok(false);
    }
    keep(conn, event).await?;
    Ok(true)
}

/// Puts a test on its way to its target.
pub async fn send_test(
    conn: &mut AnyConnection,
    event: &Event,
    target: WebhookId,
    now: Timestamp,
) -> Result<(), StoreError> {
    let sql = "INSERT INTO webhook_deliveries (event_id, target_id, due_at, attempts, test_asked_at) VALUES ($1, $2, $3, 0, $3)";
    let query = sqlx::query(sql).bind(event.id.to_string()).bind(target.to_string()).bind(now.micros());
    query.execute(&mut *conn).await?;
    keep(conn, event).await
}

async fn keep(conn: &mut AnyConnection, event: &Event) -> Result<(), StoreError> {
    sqlx::query("INSERT INTO webhook_events (id, kind, body, occurred_at) VALUES ($1, $2, $3, $4)")
        .bind(event.id.to_string())
        .bind(event.news.kind().as_str())
        .bind(event.body())
        .bind(event.at.micros())
        .execute(conn)
        .await?;
    Ok(())
}

fn who_gets(query: Bound<'_>, kind: EventKind, concerns: Concerns, now: Timestamp) -> Bound<'_> {
    let (service, agent) = match concerns {
        Concerns::Service(service) => (service.to_string(), String::new()),
        Concerns::Agent(agent) => (String::new(), agent.to_string()),
    };
    query.bind(format!("%,{},%", kind.as_str())).bind(service).bind(agent).bind(now.micros())
}

/// The body of an event, to the byte.
pub async fn body(conn: &mut AnyConnection, event: EventId) -> Result<Option<String>, StoreError> {
    let query = sqlx::query("SELECT body FROM webhook_events WHERE id = $1").bind(event.to_string());
    query.fetch_optional(conn).await?.map(|found| row::get(&found, "body")).transpose()
}

/// Removes some of the events that were made before this one; false if none are left.
pub async fn forget(conn: &mut AnyConnection, before: EventId, at_most: i64) -> Result<bool, StoreError> {
    let sql =
        "DELETE FROM webhook_events WHERE id IN (SELECT id FROM webhook_events WHERE id < $1 ORDER BY id LIMIT $2)";
    let query = sqlx::query(sql).bind(before.to_string()).bind(at_most);
    Ok(query.execute(conn).await?.rows_affected() > 0)
}

/// The failed logins of an agent at a service, locked until the transaction ends.
pub async fn storm(
    conn: &mut AnyConnection,
    agent: AgentId,
    service: Option<ServiceId>,
    now: Timestamp,
) -> Result<Storm, StoreError> {
    let sql = "INSERT INTO webhook_storms (agent_id, service_id, began_at, told, suppressed) VALUES ($1, $2, $3, 0, 0) \
               ON CONFLICT (agent_id, service_id) DO UPDATE SET told = webhook_storms.told \
               RETURNING began_at, told, suppressed";
    let query = sqlx::query(sql).bind(agent.to_string()).bind(service_text(service)).bind(now.micros());
    read_storm(&query.fetch_one(conn).await?)
}

/// Keeps what became of it.
pub async fn put_storm(
    conn: &mut AnyConnection,
    agent: AgentId,
    service: Option<ServiceId>,
    storm: &Storm,
) -> Result<(), StoreError> {
    let Storm { began_at, told, suppressed } = storm;
    let sql =
        "UPDATE webhook_storms SET began_at = $1, told = $2, suppressed = $3 WHERE agent_id = $4 AND service_id = $5";
    sqlx::query(sql)
        .bind(began_at.micros())
        .bind(i64::from(*told))
        .bind(i64::try_from(*suppressed).unwrap_or(i64::MAX))
        .bind(agent.to_string())
        .bind(service_text(service))
        .execute(conn)
        .await?;
    Ok(())
}

/// Whether any storm began at or before `horizon`.
pub async fn any_storm_since(conn: &mut AnyConnection, horizon: Timestamp) -> Result<bool, StoreError> {
    let query = sqlx::query("SELECT 1 AS one FROM webhook_storms WHERE began_at <= $1 LIMIT 1").bind(horizon.micros());
    Ok(query.fetch_optional(conn).await?.is_some())
}

/// Takes the storms away that began at or before `horizon`.
pub async fn take_storms(
    conn: &mut AnyConnection,
    horizon: Timestamp,
) -> Result<Vec<(AgentId, Option<ServiceId>, Storm)>, StoreError> {
    let sql =
        "DELETE FROM webhook_storms WHERE began_at <= $1 RETURNING agent_id, service_id, began_at, told, suppressed";
    let rows = sqlx::query(sql).bind(horizon.micros()).fetch_all(conn).await?;
    let read = |found| {
        let service: String = row::get(found, "service_id")?;
        let service = (!service.is_empty()).then(|| row::parse(found, "service_id")).transpose()?;
        Ok((row::parse(found, "agent_id")?, service, read_storm(found)?))
    };
    rows.iter().map(read).collect()
}

fn service_text(service: Option<ServiceId>) -> String {
    service.map_or(String::new(), |service| service.to_string())
}

fn read_storm(found: &sqlx::any::AnyRow) -> Result<Storm, StoreError> {
    Ok(Storm {
        began_at: row::instant(found, "began_at")?,
        told: row::number(found, "told")?,
        suppressed: row::number(found, "suppressed")?,
    })
}
