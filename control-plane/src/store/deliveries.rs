//! Events on their way to targets.

use super::{Conn, StoreError, row};
use crate::domain::{
    page::{ListPage, Page},
    webhook::{
        delivery::{Answer, Attempt, AttemptFailure, Delivery, DeliveryState, DeliveryStatus},
        event::EventKind,
    },
};
use countersign_identity::{EventId, Timestamp, WebhookId};
use sqlx::any::AnyRow;

const COLUMNS: &str = "d.event_id, e.kind, e.occurred_at, d.due_at, d.attempts, d.delivered_at, d.attempted_at, \
                       d.response_status, d.response_excerpt, d.failure";

const JOINED: &str = "webhook_deliveries d JOIN webhook_events e ON e.id = d.event_id";

/// A delivery that is ours until the lease ends.
#[derive(Debug, Clone)]
pub struct Leased {
    /// To whom.
    pub target: WebhookId,
    /// What.
    pub event: EventId,
    /// How often it was tried.
    pub attempts: u32,
    /// Whether it is a test.
    pub is_test: bool,
    /// Until when it is ours.
    pub until: Timestamp,
    /// What is sent, to the byte.
    pub body: String,
}

/// Which deliveries are taken.
#[derive(Debug, Clone, Copy)]
pub enum Which {
    /// Those of a target that are due and were never tried, the oldest first.
    New,
    /// Those of a target that are due again, the oldest first.
    Again,
    /// Tests of a target that are due.
    Tests,
}

/// Takes deliveries of a target: nobody else does until the lease ends.
pub async fn lease(
    conn: &mut Conn,
    (target, which): (WebhookId, Which),
    (now, until): (Timestamp, Timestamp),
    at_most: i64,
) -> Result<Vec<Leased>, StoreError> {
    let which = match which {
        Which::New => "AND attempts = 0 AND test_asked_at IS NULL",
        Which::Again => "AND attempts > 0 AND test_asked_at IS NULL",
        Which::Tests => "AND test_asked_at IS NOT NULL",
    };
    // Asked twice, since another worker may take them between the two. The sign keeps SQLite from reading all that is due
    // a second time.
    let sql = format!(
        "UPDATE webhook_deliveries SET due_at = $1 WHERE target_id = $2 AND +due_at <= $3 AND event_id IN \
         (SELECT event_id FROM webhook_deliveries WHERE target_id = $2 AND due_at <= $3 {which} ORDER BY due_at LIMIT $4) \
         RETURNING event_id, attempts, test_asked_at, \
         (SELECT e.body FROM webhook_events e WHERE e.id = webhook_deliveries.event_id) AS body"
    );
    let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(until.micros()).bind(target.to_string());
    let rows = query.bind(now.micros()).bind(at_most).fetch_all(conn).await?;
    let mut leased = Vec::new();
    for found in &rows {
        // Its event was forgotten just now: the delivery goes the same way.
        let Some(body) = row::get(found, "body")? else { continue };
        let (event, attempts) = (row::parse(found, "event_id")?, row::number(found, "attempts")?);
        let is_test = row::optional_instant(found, "test_asked_at")?.is_some();
        leased.push(Leased { target, event, attempts, is_test, until, body });
    }
    leased.sort_by_key(|leased| leased.event);
    Ok(leased)
}

/// Keeps what came of a try; false if it does not count: the lease ended meanwhile, and it is no success, or somebody else
/// had one.
pub async fn record(
    conn: &mut Conn,
    leased: &Leased,
    attempt: &Attempt,
    state: DeliveryState,
) -> Result<bool, StoreError> {
    let (due, delivered, dead) = match state {
        DeliveryState::Pending(at) => (Some(at), None, None),
        DeliveryState::Delivered => (None, Some(attempt.at), None),
        DeliveryState::Dead => (None, None, Some(attempt.at)),
    };
    let sql = "UPDATE webhook_deliveries SET due_at = $1, delivered_at = $2, dead_since = $3, attempts = $4, attempted_at = $5, \
               response_status = $6, response_excerpt = $7, failure = $8 \
               WHERE target_id = $9 AND event_id = $10 AND (due_at = $11 OR ($2 IS NOT NULL AND delivered_at IS NULL))";
    let done = sqlx::query(sql)
        .bind(due.map(Timestamp::micros))
        .bind(delivered.map(Timestamp::micros))
        .bind(dead.map(Timestamp::micros))
        .bind(i64::from(leased.attempts) + 1)
        .bind(attempt.at.micros())
        .bind(attempt.answer.as_ref().map(|answer| i64::from(answer.status)))
        .bind(attempt.answer.as_ref().map(|answer| answer.excerpt.as_str()))
        .bind(attempt.failure.map(AttemptFailure::as_str))
        .bind(leased.target.to_string())
        .bind(leased.event.to_string())
        .bind(leased.until.micros())
        .execute(conn)
        .await?;
    Ok(done.rows_affected() > 0)
}

/// Gives a delivery back that was not tried, for anybody to take.
pub async fn give_back(conn: &mut Conn, leased: &Leased, now: Timestamp) -> Result<(), StoreError> {
    let sql = "UPDATE webhook_deliveries SET due_at = $1 WHERE target_id = $2 AND event_id = $3 AND due_at = $4";
    let query = sqlx::query(sql).bind(now.micros()).bind(leased.target.to_string()).bind(leased.event.to_string());
    query.bind(leased.until.micros()).execute(conn).await?;
    Ok(())
}

/// The deliveries to a target, newest first.
pub async fn list(
    conn: &mut Conn,
    target: WebhookId,
    status: Option<DeliveryStatus>,
    page: Page,
) -> Result<ListPage<Delivery>, StoreError> {
    let condition = condition(status);
    let count = format!(
        "SELECT CAST(COUNT(*) AS BIGINT) AS total FROM webhook_deliveries d WHERE d.target_id = $1 {condition}"
    );
    let query = sqlx::query(sqlx::AssertSqlSafe(count)).bind(target.to_string());
    let total = row::total(&query.fetch_one(&mut *conn).await?)?;
    let sql = format!(
        "SELECT {COLUMNS} FROM {JOINED} WHERE d.target_id = $1 {condition} ORDER BY d.event_id DESC LIMIT $2 OFFSET $3"
    );
    let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(target.to_string()).bind(page.limit).bind(page.offset);
    let items = query.fetch_all(conn).await?.iter().map(read_delivery).collect::<Result<_, _>>()?;
    Ok(ListPage { items, total })
}

/// The delivery of an event to a target.
pub async fn find(conn: &mut Conn, target: WebhookId, event: EventId) -> Result<Option<Delivery>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM {JOINED} WHERE d.target_id = $1 AND d.event_id = $2");
    let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(target.to_string()).bind(event.to_string());
    query.fetch_optional(conn).await?.as_ref().map(read_delivery).transpose()
}

/// Has a delivery tried anew, from now on; false if there is none.
pub async fn replay(conn: &mut Conn, target: WebhookId, event: EventId, now: Timestamp) -> Result<bool, StoreError> {
    let sql = "UPDATE webhook_deliveries SET due_at = $1, attempts = 0, delivered_at = NULL, dead_since = NULL \
               WHERE target_id = $2 AND event_id = $3";
    let query = sqlx::query(sql).bind(now.micros()).bind(target.to_string()).bind(event.to_string());
    Ok(query.execute(conn).await?.rows_affected() == 1)
}

/// Has some deliveries tried anew that are not on their way and whose events happened at `since` or later; gives how many.
/// Events were made from `oldest` on.
pub async fn replay_some(
    conn: &mut Conn,
    target: WebhookId,
    (since, oldest): (Timestamp, EventId),
    status: Option<DeliveryStatus>,
    (now, at_most): (Timestamp, i64),
) -> Result<u64, StoreError> {
    let condition = condition(status);
    let sql = format!(
        "UPDATE webhook_deliveries SET due_at = $1, attempts = 0, delivered_at = NULL, dead_since = NULL \
         WHERE target_id = $2 AND event_id IN (SELECT d.event_id FROM webhook_deliveries d \
         JOIN webhook_events e ON e.id = d.event_id WHERE d.target_id = $2 AND d.event_id >= $3 AND d.due_at IS NULL \
         AND d.test_asked_at IS NULL AND e.occurred_at >= $4 {condition} LIMIT $5)"
    );
    let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(now.micros()).bind(target.to_string());
    let query = query.bind(oldest.to_string()).bind(since.micros()).bind(at_most);
    Ok(query.execute(conn).await?.rows_affected())
}

/// How many deliveries are on their way; a million, if there are more.
pub async fn count_pending(conn: &mut Conn) -> Result<i64, StoreError> {
    let sql = "SELECT CAST(COUNT(*) AS BIGINT) AS total FROM \
               (SELECT 1 AS one FROM webhook_deliveries WHERE due_at IS NOT NULL LIMIT 1000000) pending";
    row::total(&sqlx::query(sql).fetch_one(conn).await?)
}

/// Whether a target has deliveries of events that were made before this one.
pub async fn any_before(conn: &mut Conn, target: WebhookId, before: EventId) -> Result<bool, StoreError> {
    let sql = "SELECT 1 AS one FROM webhook_deliveries WHERE target_id = $1 AND event_id < $2 LIMIT 1";
    let query = sqlx::query(sql).bind(target.to_string()).bind(before.to_string());
    Ok(query.fetch_optional(conn).await?.is_some())
}

/// Removes some of a target's deliveries of events that were made before this one, or of all; false if none are left.
pub async fn forget(
    conn: &mut Conn,
    target: WebhookId,
    before: Option<EventId>,
    at_most: i64,
) -> Result<bool, StoreError> {
    let sql = "DELETE FROM webhook_deliveries WHERE target_id = $1 AND event_id IN (SELECT event_id FROM webhook_deliveries \
               WHERE target_id = $1 AND ($2 = '' OR event_id < $2) ORDER BY event_id LIMIT $3)";
    let before = before.map_or(String::new(), |event| event.to_string());
    let query = sqlx::query(sql).bind(target.to_string()).bind(before).bind(at_most);
    Ok(query.execute(conn).await?.rows_affected() > 0)
}

const fn condition(status: Option<DeliveryStatus>) -> &'static str {
    match status {
        None => "",
        Some(DeliveryStatus::Pending) => "AND d.due_at IS NOT NULL",
        Some(DeliveryStatus::Delivered) => "AND d.delivered_at IS NOT NULL",
        Some(DeliveryStatus::Dead) => "AND d.dead_since IS NOT NULL",
    }
}

fn read_delivery(found: &AnyRow) -> Result<Delivery, StoreError> {
    let kind = EventKind::parse(&row::get::<String>(found, "kind")?).ok_or(StoreError::Corrupt("kind"))?;
    let due = row::optional_instant(found, "due_at")?.map(DeliveryState::Pending);
    let delivered = row::optional_instant(found, "delivered_at")?.map(|_| DeliveryState::Delivered);
    let failure: Option<String> = row::get(found, "failure")?;
    let failure = failure.map(|text| AttemptFailure::parse(&text).ok_or(StoreError::Corrupt("failure"))).transpose()?;
    let status: Option<i64> = row::get(found, "response_status")?;
    let status = status.map(|status| u16::try_from(status).map_err(|_| StoreError::Corrupt("response_status")));
    let excerpt: Option<String> = row::get(found, "response_excerpt")?;
    let answer = status.transpose()?.map(|status| Answer { status, excerpt: excerpt.unwrap_or_default() });
    let last = row::optional_instant(found, "attempted_at")?.map(|at| Attempt { at, answer, failure });
    Ok(Delivery {
        event: row::parse(found, "event_id")?,
        kind,
        occurred_at: row::instant(found, "occurred_at")?,
        state: due.or(delivered).unwrap_or(DeliveryState::Dead),
        attempts: row::number(found, "attempts")?,
        last,
    })
}
