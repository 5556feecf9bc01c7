//! What happened, on its way to those who asked for it: committed with what it reports.

use super::{Conn, StoreError, row};
use crate::domain::webhook::{
    event::{Concerns, Event, EventKind},
    suppressed_burst::Storm,
};
use countersign_identity::{AgentId, EventId, ServiceId, Timestamp, WebhookId};
use sqlx::{Any, any::AnyArguments, query::Query};

/// The targets that get what concerns a service, or an agent at none: then it goes to the services where the agent holds a
/// live role. What concerns the deployment's targets is everything. $1 is the pattern of the kind, $2 the service or agent;
/// `now` is the placeholder of the time, which only the second needs.
fn get_it(concerns: Concerns, now: &str) -> String {
    let asked = "t.deleted_at IS NULL AND (t.events = '' OR t.events LIKE $1)";
    match concerns {
        Concerns::Service(_) => format!("{asked} AND t.service_id IN ('', $2)"),
        Concerns::Agent(_) => format!(
            "{asked} AND t.service_id IN (SELECT '' UNION ALL SELECT a.service_id FROM assignments a \
             WHERE a.agent_id = $2 AND (a.expires_at IS NULL OR a.expires_at > {now}))"
        ),
    }
}

type Bound<'q> = Query<'q, Any, AnyArguments>;

/// Whether anybody gets an event of this kind.
pub async fn is_wanted(
    conn: &mut Conn,
    kind: EventKind,
    concerns: Concerns,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let sql = format!("SELECT 1 AS wanted FROM webhook_targets t WHERE {} LIMIT 1", get_it(concerns, "$3"));
    let query = who_gets(sqlx::query(sqlx::AssertSqlSafe(sql)), kind, concerns);
    Ok(with_time(query, concerns, now).fetch_optional(conn).await?.is_some())
}

/// Puts an event down for whoever gets it; false if nobody does, and then nothing is kept.
pub async fn tell(conn: &mut Conn, event: &Event, now: Timestamp) -> Result<bool, StoreError> {
    let Some(concerns) = event.news.concerns() else { return Ok(false) };
    let sql = format!(
        "INSERT INTO webhook_outbox (id, kind, body, occurred_at, service_id, agent_id) SELECT $3, $4, $5, $6, $7, $8 \
         WHERE EXISTS (SELECT 1 FROM webhook_targets t WHERE {})",
        get_it(concerns, "$9")
    );
    let query = who_gets(sqlx::query(sqlx::AssertSqlSafe(sql)), event.news.kind(), concerns);
    let (service, agent) = texts(concerns);
    let query = query.bind(event.id.to_string()).bind(event.news.kind().as_str()).bind(event.body());
    let query = query.bind(event.at.micros()).bind(service).bind(agent);
    Ok(with_time(query, concerns, now).execute(conn).await?.rows_affected() > 0)
}

/// Whether events wait for being sorted.
pub async fn any(conn: &mut Conn) -> Result<bool, StoreError> {
    Ok(sqlx::query("SELECT 1 AS one FROM webhook_outbox LIMIT 1").fetch_optional(conn).await?.is_some())
}

/// Puts some of the events that were put down on their way to whoever gets them; gives how many. Nobody else takes the same.
pub async fn sort(conn: &mut Conn, now: Timestamp, at_most: i64) -> Result<usize, StoreError> {
    let sql = "DELETE FROM webhook_outbox WHERE id IN (SELECT id FROM webhook_outbox ORDER BY id LIMIT $1) \
               RETURNING id, kind, body, occurred_at, service_id, agent_id";
    let rows = sqlx::query(sql).bind(at_most).fetch_all(&mut *conn).await?;
    for found in &rows {
        let id: String = row::get(found, "id")?;
        let kind = EventKind::parse(&row::get::<String>(found, "kind")?).ok_or(StoreError::Corrupt("kind"))?;
        let concerns = match row::get::<String>(found, "service_id")?.as_str() {
            "" => Concerns::Agent(row::parse(found, "agent_id")?),
            _ => Concerns::Service(row::parse(found, "service_id")?),
        };
        let sql = format!(
            "INSERT INTO webhook_deliveries (event_id, target_id, due_at, attempts) \
             SELECT $3, t.id, $4, 0 FROM webhook_targets t WHERE {}",
            get_it(concerns, "$4")
        );
        let query = who_gets(sqlx::query(sqlx::AssertSqlSafe(sql)), kind, concerns);
        if query.bind(&id).bind(now.micros()).execute(&mut *conn).await?.rows_affected() > 0 {
            let (body, at) = (row::get::<String>(found, "body")?, row::instant(found, "occurred_at")?);
            keep(&mut *conn, (&id, kind), &body, at).await?;
        }
    }
    Ok(rows.len())
}

/// Puts a test on its way to its target.
pub async fn send_test(conn: &mut Conn, event: &Event, target: WebhookId, now: Timestamp) -> Result<(), StoreError> {
    let sql = "INSERT INTO webhook_deliveries (event_id, target_id, due_at, attempts, test_asked_at) VALUES ($1, $2, $3, 0, $3)";
    let query = sqlx::query(sql).bind(event.id.to_string()).bind(target.to_string()).bind(now.micros());
    query.execute(&mut *conn).await?;
    keep(conn, (&event.id.to_string(), event.news.kind()), &event.body(), event.at).await
}

async fn keep(conn: &mut Conn, (id, kind): (&str, EventKind), body: &str, at: Timestamp) -> Result<(), StoreError> {
    sqlx::query("INSERT INTO webhook_events (id, kind, body, occurred_at) VALUES ($1, $2, $3, $4)")
        .bind(id)
        .bind(kind.as_str())
        .bind(body)
        .bind(at.micros())
        .execute(conn)
        .await?;
    Ok(())
}

fn who_gets(query: Bound<'_>, kind: EventKind, concerns: Concerns) -> Bound<'_> {
    let (service, agent) = texts(concerns);
    query.bind(format!("%,{},%", kind.as_str())).bind(service + &agent)
}

/// The time, where it is asked for.
fn with_time(query: Bound<'_>, concerns: Concerns, now: Timestamp) -> Bound<'_> {
    match concerns {
        Concerns::Service(_) => query,
        Concerns::Agent(_) => query.bind(now.micros()),
    }
}

/// The service, or else the agent; the other is empty.
fn texts(concerns: Concerns) -> (String, String) {
    match concerns {
        Concerns::Service(service) => (service.to_string(), String::new()),
        Concerns::Agent(agent) => (String::new(), agent.to_string()),
    }
}

/// The body of an event, to the byte.
pub async fn body(conn: &mut Conn, event: EventId) -> Result<Option<String>, StoreError> {
    let query = sqlx::query("SELECT body FROM webhook_events WHERE id = $1").bind(event.to_string());
    query.fetch_optional(conn).await?.map(|found| row::get(&found, "body")).transpose()
}

/// Whether any event was made before this one.
pub async fn any_before(conn: &mut Conn, before: EventId) -> Result<bool, StoreError> {
    let query = sqlx::query("SELECT 1 AS one FROM webhook_events WHERE id < $1 LIMIT 1").bind(before.to_string());
    Ok(query.fetch_optional(conn).await?.is_some())
}

/// Removes some of the events that were made before this one.
pub async fn forget(conn: &mut Conn, before: EventId, at_most: i64) -> Result<(), StoreError> {
    let sql =
        "DELETE FROM webhook_events WHERE id IN (SELECT id FROM webhook_events WHERE id < $1 ORDER BY id LIMIT $2)";
    sqlx::query(sql).bind(before.to_string()).bind(at_most).execute(conn).await?;
    Ok(())
}

/// The failed logins of an agent at a service, locked until the transaction ends.
pub async fn storm(
    conn: &mut Conn,
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
    conn: &mut Conn,
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
pub async fn any_storm_until(conn: &mut Conn, horizon: Timestamp) -> Result<bool, StoreError> {
    let query = sqlx::query("SELECT 1 AS one FROM webhook_storms WHERE began_at <= $1 LIMIT 1").bind(horizon.micros());
    Ok(query.fetch_optional(conn).await?.is_some())
}

/// Takes the storms away that began at or before `horizon`.
pub async fn take_storms(
    conn: &mut Conn,
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
