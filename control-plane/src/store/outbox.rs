//! The outbox of events that wait for their fan-out to webhook targets (one delivery per target), the bodies of events, and the
//! counters of suppressed bursts of failed logins.
//!
//! An event is inserted in the same transaction as the change that it reports, so both are committed or neither.

use super::{
    Conn, StoreError, row,
    row_lists::{Parameter, RowListStatement},
    statements::statements,
};
use crate::domain::webhook::{
    event::{Event, EventAudience, EventKind},
    suppressed_burst::SuppressedBurst,
};
use countersign_identity::{AgentId, EventId, ServiceId, Timestamp, WebhookId};
use sqlx::{
    Any,
    any::{AnyArguments, AnyRow},
    query::Query,
};

/// The condition for targets that receive an event of a kind and of a service, which is empty for an event of no service, see
/// [`audience_column`]. Targets of the whole Countersign deployment have an empty `service_id` and receive the events of every
/// audience.
macro_rules! receives_event {
    ($kind:literal, $service:literal) => {
        concat!(
            "t.deleted_at IS NULL AND (t.events = '' OR t.events LIKE '%,' || ",
            $kind,
            " || ',%') AND t.service_id IN ('', ",
            $service,
            ")"
        )
    };
}

/// The parameters of an event in [`ENQUEUE`].
macro_rules! event_row {
    () => {
        "(CAST($1 AS TEXT), CAST($2 AS TEXT), CAST($3 AS TEXT), CAST($4 AS BIGINT), CAST($5 AS TEXT))"
    };
}

pub(super) use receives_event;

statements! { STATEMENTS:
    HAS_RECIPIENTS = concat!("SELECT 1 AS one FROM webhook_targets t WHERE ", receives_event!("$1", "$2"), " LIMIT 1");
    /// PostgreSQL would make a join of EXISTS, and read all targets.
    ENQUEUE = concat!(
        "INSERT INTO webhook_outbox (id, kind, body, occurred_at, service_id) \
         SELECT column1, column2, column3, column4, column5 FROM (VALUES ", event_row!(), ") AS v \
         WHERE column1 <> '' \
         AND (SELECT 1 FROM webhook_targets t WHERE ", receives_event!("column2", "column5"), " LIMIT 1) IS NOT NULL"
    );
    INSERT_DELIVERIES = concat!(
        "INSERT INTO webhook_deliveries (event_id, target_id, due_at, attempts) \
         SELECT $3, t.id, $4, 0 FROM webhook_targets t WHERE ", receives_event!("$1", "$2")
    );
    OLDEST_EVENT_TIME = "SELECT occurred_at AS oldest FROM webhook_outbox ORDER BY id LIMIT 1";
    ANY_EVENT = "SELECT 1 AS one FROM webhook_outbox LIMIT 1";
    HAS_MORE_EVENTS = "SELECT 1 AS one FROM webhook_outbox LIMIT 1 OFFSET $1";
    TAKE_EVENTS = "DELETE FROM webhook_outbox WHERE id IN (SELECT id FROM webhook_outbox ORDER BY id LIMIT $1 + 0) \
         RETURNING id, kind, body, occurred_at, service_id";
    OLDEST_WAITING = "SELECT MIN(id) AS id FROM webhook_outbox WHERE id >= $1";
    DELETE_WAITING_BEFORE =
        "DELETE FROM webhook_outbox WHERE id IN (SELECT id FROM webhook_outbox WHERE id >= $1 AND id < $2 ORDER BY id LIMIT $3 + 0)";
    INSERT_TEST_DELIVERY = "INSERT INTO webhook_deliveries (event_id, target_id, due_at, attempts, test_requested_at) \
         VALUES ($1, $2, $3, 0, $3)";
    INSERT_EVENT = "INSERT INTO webhook_events (id, kind, body, occurred_at) VALUES ($1, $2, $3, $4)";
    FIND_EVENT_BODY = "SELECT body FROM webhook_events WHERE id = $1";
    OLDEST_EVENT = "SELECT MIN(id) AS id FROM webhook_events WHERE id >= $1";
    DELETE_EVENTS_BEFORE =
        "DELETE FROM webhook_events WHERE id IN (SELECT id FROM webhook_events WHERE id >= $1 AND id < $2 ORDER BY id LIMIT $3 + 0)";
    LOCK_BURST = "INSERT INTO suppressed_bursts (agent_id, service_id, began_at, emitted, suppressed) VALUES ($1, $2, $3, 0, 0) \
         ON CONFLICT (agent_id, service_id) DO UPDATE SET emitted = suppressed_bursts.emitted \
         RETURNING began_at, emitted, suppressed";
    UPDATE_BURST = "UPDATE suppressed_bursts SET began_at = $1, emitted = $2, suppressed = $3 \
         WHERE agent_id = $4 AND service_id = $5";
    ANY_BURST_UNTIL = "SELECT 1 AS one FROM suppressed_bursts WHERE began_at <= $1 LIMIT 1";
    /// The DELETE repeats the condition of its inner SELECT, because another transaction may begin a new burst between the two.
    TAKE_BURSTS = "DELETE FROM suppressed_bursts WHERE (agent_id, service_id) IN (SELECT agent_id, service_id FROM suppressed_bursts \
         WHERE began_at <= $1 ORDER BY began_at LIMIT $2 + 0) AND +began_at <= $1 \
         RETURNING agent_id, service_id, began_at, emitted, suppressed";
}

const ENQUEUE_EVENTS: RowListStatement = RowListStatement { sql: ENQUEUE, row: event_row!() };

type BoundQuery<'q> = Query<'q, Any, AnyArguments>;

/// Whether any target receives events of a given kind and audience.
pub async fn has_recipients(conn: &mut Conn, kind: EventKind, audience: EventAudience) -> Result<bool, StoreError> {
    let query = bind_audience(sqlx::query(HAS_RECIPIENTS), kind, audience);
    Ok(query.fetch_optional(conn).await?.is_some())
}

/// Inserts those events into the outbox that a target receives. Returns whether there are such events.
pub async fn enqueue(conn: &mut Conn, events: &[Event]) -> Result<bool, StoreError> {
    let row = |event: &Event| -> Option<[Parameter; 5]> {
        let audience = audience_column(event.data.audience()?);
        let (id, kind) = (event.id.to_string().into(), event.data.kind().as_str().into());
        Some([id, kind, event.body().into(), event.at.micros().into(), audience.into()])
    };
    Ok(ENQUEUE_EVENTS.execute(conn, &[], events.iter().filter_map(row)).await? > 0)
}

/// The statements with several rows, for the conformance tests.
#[cfg(test)]
pub(super) fn dynamic_statements() -> Vec<String> {
    ENQUEUE_EVENTS.texts()
}

/// The time of the oldest event that waits for its fan-out.
pub async fn oldest_event_time(conn: &mut Conn) -> Result<Option<Timestamp>, StoreError> {
    let row = sqlx::query(OLDEST_EVENT_TIME).fetch_optional(conn).await?;
    row.map(|row| row::timestamp(&row, "oldest")).transpose()
}

/// Whether any event waits for its fan-out to webhook targets.
pub async fn has_events(conn: &mut Conn) -> Result<bool, StoreError> {
    Ok(sqlx::query(ANY_EVENT).fetch_optional(conn).await?.is_some())
}

/// Whether more than this number of events wait for their fan-out. Background work then emits no more, so that the events of
/// requests do not wait for its events.
pub async fn has_more_events_than(conn: &mut Conn, count: i64) -> Result<bool, StoreError> {
    Ok(sqlx::query(HAS_MORE_EVENTS).bind(count).fetch_optional(conn).await?.is_some())
}

/// Removes up to `limit` events from the outbox and inserts a delivery for each of their targets. Concurrent calls get different
/// events. The kind stays a text: a control plane of a later version may have emitted the event.
pub async fn fan_out(conn: &mut Conn, now: Timestamp, limit: i64) -> Result<usize, StoreError> {
    let rows = sqlx::query(TAKE_EVENTS).bind(limit).fetch_all(&mut *conn).await?;
    for row in &rows {
        let text = |column| row::get::<String>(row, column);
        let (id, kind) = (text("id")?, text("kind")?);
        let query = sqlx::query(INSERT_DELIVERIES).bind(&kind).bind(text("service_id")?);
        if query.bind(&id).bind(now.micros()).execute(&mut *conn).await?.rows_affected() > 0 {
            insert_event(&mut *conn, &id, &kind, &text("body")?, row::timestamp(row, "occurred_at")?).await?;
        }
    }
    Ok(rows.len())
}

/// Inserts a test event and a delivery of it to one target.
pub async fn insert_test(conn: &mut Conn, event: &Event, target: WebhookId, now: Timestamp) -> Result<(), StoreError> {
    let query =
        sqlx::query(INSERT_TEST_DELIVERY).bind(event.id.to_string()).bind(target.to_string()).bind(now.micros());
    query.execute(&mut *conn).await?;
    insert_event(conn, &event.id.to_string(), event.data.kind().as_str(), &event.body(), event.at).await
}

async fn insert_event(conn: &mut Conn, id: &str, kind: &str, body: &str, at: Timestamp) -> Result<(), StoreError> {
    sqlx::query(INSERT_EVENT).bind(id).bind(kind).bind(body).bind(at.micros()).execute(conn).await?;
    Ok(())
}

fn bind_audience(query: BoundQuery<'_>, kind: EventKind, audience: EventAudience) -> BoundQuery<'_> {
    query.bind(kind.as_str()).bind(audience_column(audience))
}

/// The service that an audience belongs to; empty for the whole Countersign deployment.
fn audience_column(audience: EventAudience) -> String {
    match audience {
        EventAudience::Service(service) => service.to_string(),
        EventAudience::Deployment => String::new(),
    }
}

/// Finds the body of an event, byte for byte as deliveries sign it.
pub async fn find_event_body(conn: &mut Conn, event: EventId) -> Result<Option<String>, StoreError> {
    let query = sqlx::query(FIND_EVENT_BODY).bind(event.to_string());
    query.fetch_optional(conn).await?.map(|row| row::get(&row, "body")).transpose()
}

/// The lowest id of an event with deliveries, at or after `from`.
pub async fn oldest_event(conn: &mut Conn, from: EventId) -> Result<Option<EventId>, StoreError> {
    row::parse_optional(&sqlx::query(OLDEST_EVENT).bind(from.to_string()).fetch_one(conn).await?, "id")
}

/// Deletes up to `limit` events with an id from `from` on that is lower than `before`. Returns their number.
pub async fn delete_events_before(
    conn: &mut Conn,
    from: EventId,
    before: EventId,
    limit: i64,
) -> Result<u64, StoreError> {
    let query = sqlx::query(DELETE_EVENTS_BEFORE).bind(from.to_string()).bind(before.to_string()).bind(limit);
    Ok(query.execute(conn).await?.rows_affected())
}

/// The lowest id of an event, at or after `from`, that waits for its fan-out.
pub async fn oldest_waiting(conn: &mut Conn, from: EventId) -> Result<Option<EventId>, StoreError> {
    row::parse_optional(&sqlx::query(OLDEST_WAITING).bind(from.to_string()).fetch_one(conn).await?, "id")
}

/// Deletes up to `limit` events with an id from `from` on that is lower than `before`, and that wait for their fan-out. No target
/// receives them. Returns their number.
pub async fn delete_waiting_before(
    conn: &mut Conn,
    from: EventId,
    before: EventId,
    limit: i64,
) -> Result<u64, StoreError> {
    let query = sqlx::query(DELETE_WAITING_BEFORE).bind(from.to_string()).bind(before.to_string()).bind(limit);
    Ok(query.execute(conn).await?.rows_affected())
}

/// Returns the burst of failed logins of an agent at a service, and inserts a new burst if there is none. Locks the row of the
/// burst until the transaction ends.
pub async fn lock_burst(
    conn: &mut Conn,
    agent: AgentId,
    service: Option<ServiceId>,
    now: Timestamp,
) -> Result<SuppressedBurst, StoreError> {
    let query = sqlx::query(LOCK_BURST).bind(agent.to_string()).bind(service_id_column(service)).bind(now.micros());
    burst_from_row(&query.fetch_one(conn).await?)
}

/// Stores the counters of a burst of failed logins.
pub async fn update_burst(
    conn: &mut Conn,
    agent: AgentId,
    service: Option<ServiceId>,
    burst: &SuppressedBurst,
) -> Result<(), StoreError> {
    let SuppressedBurst { began_at, emitted, suppressed } = burst;
    sqlx::query(UPDATE_BURST)
        .bind(began_at.micros())
        .bind(i64::from(*emitted))
        .bind(i64::try_from(*suppressed).unwrap_or(i64::MAX))
        .bind(agent.to_string())
        .bind(service_id_column(service))
        .execute(conn)
        .await?;
    Ok(())
}

/// Whether any burst of failed logins began at or before `horizon`.
pub async fn has_bursts_until(conn: &mut Conn, horizon: Timestamp) -> Result<bool, StoreError> {
    let query = sqlx::query(ANY_BURST_UNTIL).bind(horizon.micros());
    Ok(query.fetch_optional(conn).await?.is_some())
}

/// Deletes and returns up to `limit` bursts of failed logins that began at or before `horizon`.
pub async fn take_bursts(
    conn: &mut Conn,
    horizon: Timestamp,
    limit: i64,
) -> Result<Vec<(AgentId, Option<ServiceId>, SuppressedBurst)>, StoreError> {
    let rows = sqlx::query(TAKE_BURSTS).bind(horizon.micros()).bind(limit).fetch_all(conn).await?;
    let key_and_burst = |row| {
        let service: String = row::get(row, "service_id")?;
        let service = (!service.is_empty()).then(|| row::parse(row, "service_id")).transpose()?;
        Ok((row::parse(row, "agent_id")?, service, burst_from_row(row)?))
    };
    rows.iter().map(key_and_burst).collect()
}

fn service_id_column(service: Option<ServiceId>) -> String {
    service.map_or(String::new(), |service| service.to_string())
}

fn burst_from_row(row: &AnyRow) -> Result<SuppressedBurst, StoreError> {
    Ok(SuppressedBurst {
        began_at: row::timestamp(row, "began_at")?,
        emitted: row::number(row, "emitted")?,
        suppressed: row::number(row, "suppressed")?,
    })
}
