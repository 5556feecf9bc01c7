//! Deliveries of events to webhook targets.
//!
//! A replica leases a delivery by setting `due_at` to the end of the lease. If the replica dies, the delivery is due again when the
//! lease ends. Limits are written `$n + 0`, see [`statements`](super::statements).

use super::{
    Conn, StoreError,
    query::{params, text_or_empty},
    row,
    statements::statements,
};
use crate::domain::{
    page::{ListPage, Page},
    webhook::delivery::{Attempt, AttemptFailure, Delivery, DeliveryState, DeliveryStatus, ResponseExcerpt},
};
use countersign_identity::{EventId, Timestamp, WebhookId};
use sqlx::any::AnyRow;

macro_rules! select {
    () => {
        "SELECT d.event_id, e.kind, e.occurred_at, d.due_at, d.attempts, d.delivered_at, d.attempted_at, \
         d.response_status, d.response_excerpt, d.failure \
         FROM webhook_deliveries d JOIN webhook_events e ON e.id = d.event_id WHERE d.target_id = $1 "
    };
}

macro_rules! count {
    ($condition:literal) => {
        concat!(
            "SELECT CAST(COUNT(*) AS BIGINT) AS total FROM (SELECT 1 AS one FROM webhook_deliveries d WHERE d.target_id = $1 ",
            $condition,
            " LIMIT $2 + 0) counted"
        )
    };
}

macro_rules! list {
    ($condition:literal) => {
        concat!(select!(), "AND d.event_id < $2 ", $condition, " ORDER BY d.event_id DESC LIMIT $3 + 0 OFFSET $4")
    };
}

/// The UPDATE repeats the condition on `due_at` of its inner SELECT: another replica may lease rows between the SELECT and the
/// UPDATE. Without the unary plus, SQLite would use the index for the condition of the UPDATE, and read all due rows a second time.
macro_rules! lease {
    ($condition:literal) => {
        concat!(
            "UPDATE webhook_deliveries SET due_at = $1 WHERE target_id = $2 AND +due_at <= $3 AND event_id IN \
             (SELECT event_id FROM webhook_deliveries WHERE target_id = $2 AND due_at <= $3 ",
            $condition,
            " ORDER BY due_at LIMIT $4 + 0) RETURNING event_id, attempts, test_requested_at, \
             (SELECT e.body FROM webhook_events e WHERE e.id = webhook_deliveries.event_id) AS body"
        )
    };
}

/// Selects the next `$3` finished deliveries to a target (`$1`) after an event (`$2`).
macro_rules! finished_page {
    ($condition:literal) => {
        concat!(
            "SELECT d.event_id FROM webhook_deliveries d WHERE d.target_id = $1 AND d.event_id > $2 ",
            $condition,
            " ORDER BY d.event_id LIMIT $3 + 0"
        )
    };
}

/// Selects the last event of a page of deliveries, and the number of deliveries in the page.
macro_rules! end_of_page {
    ($page:expr) => {
        concat!("SELECT MAX(event_id) AS last, CAST(COUNT(*) AS BIGINT) AS total FROM (", $page, ") page")
    };
}

/// Makes the finished deliveries to a target (`$2`) due at `$1` if their events come after `$3`, up to `$4`, and happened at `$5`
/// or later. Tests are sent again only if somebody replays just this delivery.
macro_rules! replay_page {
    ($condition:literal) => {
        concat!(
            "UPDATE webhook_deliveries SET due_at = $1, attempts = 0, delivered_at = NULL, dead_since = NULL \
             WHERE target_id = $2 AND event_id > $3 AND event_id <= $4 AND test_requested_at IS NULL \
             AND (SELECT e.occurred_at FROM webhook_events e WHERE e.id = webhook_deliveries.event_id) >= $5 ",
            $condition
        )
    };
}

statements! { STATEMENTS:
    LEASE_FIRST_ATTEMPT = lease!("AND attempts = 0 AND test_requested_at IS NULL");
    LEASE_RETRY = lease!("AND attempts > 0 AND test_requested_at IS NULL");
    LEASE_TEST = lease!("AND test_requested_at IS NOT NULL");
    COUNT_DELIVERIES = count!("");
    COUNT_PENDING = count!("AND d.due_at IS NOT NULL");
    COUNT_DELIVERED = count!("AND d.delivered_at IS NOT NULL");
    COUNT_DEAD = count!("AND d.dead_since IS NOT NULL");
    LIST_DELIVERIES = list!("");
    LIST_PENDING = list!("AND d.due_at IS NOT NULL");
    LIST_DELIVERED = list!("AND d.delivered_at IS NOT NULL");
    LIST_DEAD = list!("AND d.dead_since IS NOT NULL");
    END_OF_DELIVERED = end_of_page!(finished_page!("AND d.delivered_at IS NOT NULL"));
    END_OF_DEAD = end_of_page!(finished_page!("AND d.dead_since IS NOT NULL"));
    /// Reads delivered and dead deliveries separately. With one condition for both, a database would read pending deliveries too.
    END_OF_FINISHED = end_of_page!(concat!(
        "SELECT event_id FROM (SELECT event_id FROM (", finished_page!("AND d.delivered_at IS NOT NULL"), ") delivered \
         UNION ALL SELECT event_id FROM (", finished_page!("AND d.dead_since IS NOT NULL"), ") dead) finished \
         ORDER BY event_id LIMIT $3 + 0"
    ));
    REPLAY_DELIVERED = replay_page!("AND delivered_at IS NOT NULL");
    REPLAY_DEAD = replay_page!("AND dead_since IS NOT NULL");
    FIND_DELIVERY = concat!(select!(), "AND d.event_id = $2");
    RECORD_ATTEMPT = "UPDATE webhook_deliveries SET due_at = $1, delivered_at = $2, dead_since = $3, attempts = $4, \
         attempted_at = $5, response_status = $6, response_excerpt = $7, failure = $8 \
         WHERE target_id = $9 AND event_id = $10 \
         AND (due_at = $11 OR (CAST($2 AS BIGINT) IS NOT NULL AND delivered_at IS NULL))";
    RELEASE_LEASE = "UPDATE webhook_deliveries SET due_at = $1 WHERE target_id = $2 AND event_id = $3 AND due_at = $4";
    REPLAY_DELIVERY = "UPDATE webhook_deliveries SET due_at = $1, attempts = 0, delivered_at = NULL, dead_since = NULL \
         WHERE target_id = $2 AND event_id = $3";
    COUNT_ALL_PENDING = "SELECT CAST(COUNT(*) AS BIGINT) AS total FROM \
         (SELECT 1 AS one FROM webhook_deliveries WHERE due_at IS NOT NULL LIMIT 100000) pending";
    DELETE_DELIVERIES_BEFORE = "DELETE FROM webhook_deliveries WHERE target_id = $1 AND event_id IN \
         (SELECT event_id FROM webhook_deliveries WHERE target_id = $1 AND ($2 = '' OR event_id < $2) \
         ORDER BY event_id LIMIT $3 + 0)";
}

/// A delivery that this process may attempt until the lease ends.
#[derive(Debug, Clone)]
pub struct LeasedDelivery {
    pub target: WebhookId,
    pub event: EventId,
    /// Number of attempts before the lease.
    pub attempts: u32,
    pub is_test: bool,
    pub leased_until: Timestamp,
    /// The exact body of the request.
    pub body: String,
}

/// The kind of due deliveries to lease.
#[derive(Debug, Clone, Copy)]
pub enum DueDeliveryKind {
    /// Deliveries without an attempt.
    FirstAttempt,
    /// Deliveries with at least one failed attempt.
    Retry,
    /// Deliveries of test events.
    Test,
}

/// Leases up to `limit` deliveries of a target, those that have been due for longest, in the order of their events. No other
/// replica can lease them until the lease ends.
pub async fn lease(
    conn: &mut Conn,
    target: WebhookId,
    kind: DueDeliveryKind,
    now: Timestamp,
    until: Timestamp,
    limit: i64,
) -> Result<Vec<LeasedDelivery>, StoreError> {
    let sql = match kind {
        DueDeliveryKind::FirstAttempt => LEASE_FIRST_ATTEMPT,
        DueDeliveryKind::Retry => LEASE_RETRY,
        DueDeliveryKind::Test => LEASE_TEST,
    };
    let leased_from_row = |row: &AnyRow| {
        // Without a body, housekeeping has just deleted the event, and will delete the delivery next.
        let Some(body) = row::get(row, "body")? else { return Ok(None) };
        let (event, attempts) = (row::parse(row, "event_id")?, row::number(row, "attempts")?);
        let is_test = row::optional_timestamp(row, "test_requested_at")?.is_some();
        Ok(Some(LeasedDelivery { target, event, attempts, is_test, leased_until: until, body }))
    };
    let rows: Vec<_> = conn.list_rows(sql, params![until, target, now, limit], leased_from_row).await?;
    let mut leased: Vec<_> = rows.into_iter().flatten().collect();
    leased.sort_by_key(|leased| leased.event);
    Ok(leased)
}

/// Stores the outcome of an attempt. If the lease has ended, stores only a success, and only if no other replica has stored a
/// success. Returns whether the outcome was stored.
pub async fn record_attempt(
    conn: &mut Conn,
    leased: &LeasedDelivery,
    attempt: &Attempt,
    state: DeliveryState,
) -> Result<bool, StoreError> {
    let (due_at, delivered_at, dead_since) = match state {
        DeliveryState::Pending(at) => (Some(at), None, None),
        DeliveryState::Delivered => (None, Some(attempt.at), None),
        DeliveryState::Dead => (None, None, Some(attempt.at)),
    };
    let parameters = params![
        due_at,
        delivered_at,
        dead_since,
        i64::from(leased.attempts) + 1,
        attempt.at,
        attempt.response.as_ref().map(|response| response.status),
        attempt.response.as_ref().map(|response| &response.body),
        attempt.failure,
        leased.target,
        leased.event,
        leased.leased_until,
    ];
    conn.changes_row(RECORD_ATTEMPT, parameters).await
}

/// Ends the lease of a delivery without an attempt, so that any replica can lease the delivery now.
pub async fn release_lease(conn: &mut Conn, leased: &LeasedDelivery, now: Timestamp) -> Result<(), StoreError> {
    conn.apply(RELEASE_LEASE, params![now, leased.target, leased.event, leased.leased_until]).await
}

/// Lists the deliveries of a target, newest event first.
pub async fn list(
    conn: &mut Conn,
    target: WebhookId,
    status: Option<DeliveryStatus>,
    page: Page<EventId>,
) -> Result<ListPage<Delivery, EventId>, StoreError> {
    let [count, list] = match status {
        None => [COUNT_DELIVERIES, LIST_DELIVERIES],
        Some(DeliveryStatus::Pending) => [COUNT_PENDING, LIST_PENDING],
        Some(DeliveryStatus::Delivered) => [COUNT_DELIVERED, LIST_DELIVERED],
        Some(DeliveryStatus::Dead) => [COUNT_DEAD, LIST_DEAD],
    };
    let total = conn.count_items(count, params![target]).await?;
    let before = page.after.unwrap_or(EventId::from_bits(u128::MAX));
    conn.list_page(list, params![target, before], &page, total, delivery_from_row, |delivery| delivery.event).await
}

pub async fn find(conn: &mut Conn, target: WebhookId, event: EventId) -> Result<Option<Delivery>, StoreError> {
    conn.find_row(FIND_DELIVERY, params![target, event], delivery_from_row).await
}

/// Makes a delivery due now and resets its attempts. Returns false if there is no such delivery.
pub async fn replay(conn: &mut Conn, target: WebhookId, event: EventId, now: Timestamp) -> Result<bool, StoreError> {
    conn.changes_row(REPLAY_DELIVERY, params![now, target, event]).await
}

/// The result of one batch of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplayedBatch {
    pub replayed: u64,
    /// The event after which the next batch begins; `None` if there are no more deliveries.
    pub next: Option<EventId>,
}

/// Replays a batch of finished deliveries: the next `limit` deliveries with this status (or any, if `None`) whose event id is above
/// `after`. Tests, and deliveries of events before `since`, count for the batch but are not replayed. Batches follow the event ids,
/// so the work does not grow with other deliveries, and a delivery that finishes again during the replay is not replayed twice.
pub async fn replay_batch(
    conn: &mut Conn,
    target: WebhookId,
    since: Timestamp,
    after: EventId,
    status: Option<DeliveryStatus>,
    now: Timestamp,
    limit: i64,
) -> Result<ReplayedBatch, StoreError> {
    let (sql, replays): (_, &[&'static str]) = match status {
        None => (END_OF_FINISHED, &[REPLAY_DELIVERED, REPLAY_DEAD]),
        // A pending delivery cannot be replayed, so there is nothing to do.
        Some(DeliveryStatus::Pending) => return Ok(ReplayedBatch { replayed: 0, next: None }),
        Some(DeliveryStatus::Delivered) => (END_OF_DELIVERED, &[REPLAY_DELIVERED]),
        Some(DeliveryStatus::Dead) => (END_OF_DEAD, &[REPLAY_DEAD]),
    };
    let last_and_count = |row: &AnyRow| Ok((row::parse_optional::<EventId>(row, "last")?, row::total_count(row)?));
    let (last, count) = conn.read_row(sql, params![target, after, limit], last_and_count).await?;
    let Some(last) = last else { return Ok(ReplayedBatch { replayed: 0, next: None }) };
    let mut replayed = 0;
    for &sql in replays {
        replayed += conn.count_changes(sql, params![now, target, after, last, since]).await?;
    }
    Ok(ReplayedBatch { replayed, next: (count >= limit).then_some(last) })
}

/// Counts pending deliveries, up to 100,000, because counting more would take too long.
pub async fn count_pending(conn: &mut Conn) -> Result<i64, StoreError> {
    conn.read_row(COUNT_ALL_PENDING, params![], row::total_count).await
}

/// Deletes up to `limit` deliveries of a target. If `before` is set, only those of older events. Returns their number.
pub async fn delete_before(
    conn: &mut Conn,
    target: WebhookId,
    before: Option<EventId>,
    limit: i64,
) -> Result<u64, StoreError> {
    conn.count_changes(DELETE_DELIVERIES_BEFORE, params![target, text_or_empty(before), limit]).await
}

fn delivery_from_row(row: &AnyRow) -> Result<Delivery, StoreError> {
    let due = row::optional_timestamp(row, "due_at")?.map(DeliveryState::Pending);
    let delivered = row::optional_timestamp(row, "delivered_at")?.map(|_| DeliveryState::Delivered);
    let failure: Option<String> = row::get(row, "failure")?;
    let failure = failure.map(|text| AttemptFailure::parse(&text).ok_or(StoreError::Corrupt("failure"))).transpose()?;
    let status: Option<i64> = row::get(row, "response_status")?;
    let status = status.map(|status| u16::try_from(status).map_err(|_| StoreError::Corrupt("response_status")));
    let body: Option<String> = row::get(row, "response_excerpt")?;
    let response = status.transpose()?.map(|status| ResponseExcerpt { status, body: body.unwrap_or_default() });
    let last_attempt = row::optional_timestamp(row, "attempted_at")?.map(|at| Attempt { at, response, failure });
    Ok(Delivery {
        event: row::parse(row, "event_id")?,
        kind: row::get(row, "kind")?,
        occurred_at: row::timestamp(row, "occurred_at")?,
        state: due.or(delivered).unwrap_or(DeliveryState::Dead),
        attempts: row::number(row, "attempts")?,
        last_attempt,
    })
}
