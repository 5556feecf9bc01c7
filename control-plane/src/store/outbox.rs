//! The outbox of webhook events. An event waits there for its fan-out, which inserts one delivery for each target. Also the bodies
//! of events, and the counters of bursts of failed logins (the failures of one agent at one service within a minute).
//!
//! The transaction of a change also inserts the event that reports the change, so both are committed or neither.

use super::{
    Conn, StoreError,
    query::{params, text_or_empty},
    retention::RowsById,
    row,
    row_lists::row_list_statements,
    statements::statements,
};
use crate::domain::{
    service::ServiceOrDeployment,
    webhook::{
        event::{Event, EventKind},
        suppressed_burst::SuppressedBurst,
    },
};
use countersign_identity::{AgentId, EventId, ServiceId, Timestamp, WebhookId};
use sqlx::any::AnyRow;

/// The condition that the target `t` receives events of a kind and of a service. For events of no service, the service is an empty
/// text. Targets of the whole Countersign deployment have an empty `service_id`, and receive all events of the kind.
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

pub(super) use receives_event;

statements! { STATEMENTS:
    HAS_RECIPIENTS = concat!("SELECT 1 AS one FROM webhook_targets t WHERE ", receives_event!("$1", "$2"), " LIMIT 1");
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
    /// If the burst exists, the UPDATE changes nothing, but locks the row.
    LOCK_BURST = "INSERT INTO suppressed_bursts (agent_id, service_id, began_at, emitted, suppressed) VALUES ($1, $2, $3, 0, 0) \
         ON CONFLICT (agent_id, service_id) DO UPDATE SET emitted = suppressed_bursts.emitted \
         RETURNING began_at, emitted, suppressed";
    UPDATE_BURST = "UPDATE suppressed_bursts SET began_at = $1, emitted = $2, suppressed = $3 \
         WHERE agent_id = $4 AND service_id = $5";
    ANY_BURST_UNTIL = "SELECT 1 AS one FROM suppressed_bursts WHERE began_at <= $1 LIMIT 1";
    /// The DELETE repeats the condition of its inner SELECT, because another transaction may begin a new burst between the SELECT
    /// and the DELETE. Without the unary plus, SQLite would read all these rows again for the DELETE.
    TAKE_BURSTS = "DELETE FROM suppressed_bursts WHERE (agent_id, service_id) IN (SELECT agent_id, service_id FROM suppressed_bursts \
         WHERE began_at <= $1 ORDER BY began_at LIMIT $2 + 0) AND +began_at <= $1 \
         RETURNING agent_id, service_id, began_at, emitted, suppressed";
}

row_list_statements! { ROW_LISTS:
    /// The braces mark the row that is repeated; superfluous rows are empty. We use no EXISTS, because PostgreSQL would make a join
    /// of it and read all targets.
    ENQUEUE = concat!(
        "INSERT INTO webhook_outbox (id, kind, body, occurred_at, service_id) \
         SELECT column1, column2, column3, column4, column5 FROM (VALUES \
         {(CAST($1 AS TEXT), CAST($2 AS TEXT), CAST($3 AS TEXT), CAST($4 AS BIGINT), CAST($5 AS TEXT))}) AS v WHERE column1 <> '' \
         AND (SELECT 1 FROM webhook_targets t WHERE ", receives_event!("column2", "column5"), " LIMIT 1) IS NOT NULL"
    );
}

/// Whether any target receives events of a given kind and scope.
pub async fn has_recipients(conn: &mut Conn, kind: EventKind, scope: ServiceOrDeployment) -> Result<bool, StoreError> {
    conn.has_row(HAS_RECIPIENTS, params![kind, scope]).await
}

/// Inserts the events that a target receives into the outbox. Returns whether it has inserted any. Skips test events, which have no
/// scope: [`insert_test`] inserts them for one target.
pub async fn enqueue(conn: &mut Conn, events: &[Event]) -> Result<bool, StoreError> {
    let row = |event: &Event| Some(params![event.id, event.data.kind(), event.body(), event.at, event.data.scope()?]);
    Ok(ENQUEUE.execute(conn, &[], events.iter().filter_map(row)).await? > 0)
}

/// The time of the oldest event that waits for its fan-out.
pub async fn oldest_event_time(conn: &mut Conn) -> Result<Option<Timestamp>, StoreError> {
    conn.find_row(OLDEST_EVENT_TIME, params![], |row| row::timestamp(row, "oldest")).await
}

/// Whether any event waits for its fan-out to webhook targets.
pub async fn has_events(conn: &mut Conn) -> Result<bool, StoreError> {
    conn.has_row(ANY_EVENT, params![]).await
}

/// Whether more than this number of events wait for their fan-out. If so, background jobs emit no further events, which would delay
/// the events of requests.
pub async fn has_more_events_than(conn: &mut Conn, count: i64) -> Result<bool, StoreError> {
    conn.has_row(HAS_MORE_EVENTS, params![count]).await
}

/// Removes up to `limit` events from the outbox, inserts a delivery for each of their targets, and returns the number of events.
/// Concurrent calls get different events. The kind stays a text: a control plane of a later version may have emitted the event.
pub async fn fan_out(conn: &mut Conn, now: Timestamp, limit: i64) -> Result<usize, StoreError> {
    let event_from_row = |row: &AnyRow| -> Result<_, StoreError> {
        let text = |column| row::get::<String>(row, column);
        Ok(([text("id")?, text("kind")?, text("body")?, text("service_id")?], row::timestamp(row, "occurred_at")?))
    };
    let events: Vec<_> = conn.list_rows(TAKE_EVENTS, params![limit], event_from_row).await?;
    for ([id, kind, body, service], at) in &events {
        if conn.count_changes(INSERT_DELIVERIES, params![kind, service, id, now]).await? > 0 {
            conn.apply(INSERT_EVENT, params![id, kind, body, at]).await?;
        }
    }
    Ok(events.len())
}

/// Inserts a test event and a delivery of it to one target.
pub async fn insert_test(conn: &mut Conn, event: &Event, target: WebhookId, now: Timestamp) -> Result<(), StoreError> {
    conn.apply(INSERT_TEST_DELIVERY, params![event.id, target, now]).await?;
    conn.apply(INSERT_EVENT, params![event.id, event.data.kind(), event.body(), event.at]).await
}

/// Finds the body of an event, byte for byte as deliveries sign it.
pub async fn find_event_body(conn: &mut Conn, event: EventId) -> Result<Option<String>, StoreError> {
    conn.find_row(FIND_EVENT_BODY, params![event], |row| row::get(row, "body")).await
}

/// Events with deliveries.
pub const EVENTS: RowsById = RowsById { oldest: OLDEST_EVENT, delete: DELETE_EVENTS_BEFORE };

/// Events that wait for their fan-out. Housekeeping deletes events that have waited too long, so that no target ever receives them.
pub const WAITING_EVENTS: RowsById = RowsById { oldest: OLDEST_WAITING, delete: DELETE_WAITING_BEFORE };

/// Returns the burst of failed logins of an agent at a service, and inserts a new burst if there is none. Locks the row of the
/// burst until the transaction ends.
pub async fn lock_burst(
    conn: &mut Conn,
    agent: AgentId,
    service: Option<ServiceId>,
    now: Timestamp,
) -> Result<SuppressedBurst, StoreError> {
    conn.read_row(LOCK_BURST, params![agent, text_or_empty(service), now], burst_from_row).await
}

/// Stores the counters of a burst of failed logins.
pub async fn update_burst(
    conn: &mut Conn,
    agent: AgentId,
    service: Option<ServiceId>,
    burst: &SuppressedBurst,
) -> Result<(), StoreError> {
    let SuppressedBurst { began_at, emitted, suppressed } = burst;
    let suppressed = i64::try_from(*suppressed).unwrap_or(i64::MAX);
    conn.apply(UPDATE_BURST, params![began_at, emitted, suppressed, agent, text_or_empty(service)]).await
}

/// Whether any burst of failed logins began at or before `horizon`.
pub async fn has_bursts_until(conn: &mut Conn, horizon: Timestamp) -> Result<bool, StoreError> {
    conn.has_row(ANY_BURST_UNTIL, params![horizon]).await
}

/// Deletes and returns up to `limit` bursts of failed logins that began at or before `horizon`.
pub async fn take_bursts(
    conn: &mut Conn,
    horizon: Timestamp,
    limit: i64,
) -> Result<Vec<(AgentId, Option<ServiceId>, SuppressedBurst)>, StoreError> {
    let key_and_burst = |row: &AnyRow| {
        let service: String = row::get(row, "service_id")?;
        let service = (!service.is_empty()).then(|| row::parse(row, "service_id")).transpose()?;
        Ok((row::parse(row, "agent_id")?, service, burst_from_row(row)?))
    };
    conn.list_rows(TAKE_BURSTS, params![horizon, limit], key_and_burst).await
}

fn burst_from_row(row: &AnyRow) -> Result<SuppressedBurst, StoreError> {
    Ok(SuppressedBurst {
        began_at: row::timestamp(row, "began_at")?,
        emitted: row::number(row, "emitted")?,
        suppressed: row::number(row, "suppressed")?,
    })
}
