//! Where events are delivered to.

use super::{Conn, StoreError, row};
use crate::domain::{
    text::Description,
    webhook::{DisabledReason, Place, Target, event::EventFilter, url::TargetUrl},
};
use countersign_identity::{Timestamp, WebhookId};
use sqlx::any::AnyRow;

const COLUMNS: &str = "id, service_id, url, events, description, created_at, updated_at, paused_at, disabled_at, \
                       disabled_reason, failing_since, previous_until";

/// A target that events are delivered to.
const ACTIVE: &str = "t.deleted_at IS NULL AND t.paused_at IS NULL AND t.disabled_at IS NULL";

/// The sealed secrets of a target that sign.
#[derive(Clone)]
pub struct SealedSecrets {
    /// The one that signs.
    pub current: String,
    /// The one of before, as long as it signs too.
    pub previous: Option<String>,
}

/// Inserts a new target.
pub async fn insert(conn: &mut Conn, target: &Target, sealed: &str) -> Result<(), StoreError> {
    let sql = "INSERT INTO webhook_targets (id, service_id, url, events, description, secret, created_at, updated_at, \
               active_since) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $7)";
    sqlx::query(sql)
        .bind(target.id.to_string())
        .bind(service_text(target.place))
        .bind(target.url.to_string())
        .bind(write_events(&target.events))
        .bind(target.description.as_str())
        .bind(sealed)
        .bind(target.created_at.micros())
        .bind(target.updated_at.micros())
        .execute(conn)
        .await?;
    Ok(())
}

/// Changes what people may change of a target, and whether it is paused or disabled.
pub async fn update(conn: &mut Conn, target: &Target, resumed: bool) -> Result<(), StoreError> {
    let sql = "UPDATE webhook_targets SET url = $1, events = $2, description = $3, updated_at = $4, paused_at = $5, \
               disabled_at = $6, disabled_reason = $7, failing_since = $8, \
               active_since = CASE WHEN $10 = 1 THEN $4 ELSE active_since END WHERE id = $9";
    sqlx::query(sql)
        .bind(target.url.to_string())
        .bind(write_events(&target.events))
        .bind(target.description.as_str())
        .bind(target.updated_at.micros())
        .bind(target.paused_at.map(Timestamp::micros))
        .bind(target.disabled.map(|(at, _)| at.micros()))
        .bind(target.disabled.map(|(_, reason)| reason.as_str()))
        .bind(target.failing_since.map(Timestamp::micros))
        .bind(target.id.to_string())
        .bind(i64::from(resumed))
        .execute(conn)
        .await?;
    Ok(())
}

/// Replaces the secret; the one of before signs too until then.
pub async fn rotate(conn: &mut Conn, target: WebhookId, sealed: &str, until: Timestamp) -> Result<(), StoreError> {
    let sql = "UPDATE webhook_targets SET previous_secret = secret, previous_until = $1, secret = $2 WHERE id = $3";
    sqlx::query(sql).bind(until.micros()).bind(sealed).bind(target.to_string()).execute(conn).await?;
    Ok(())
}

/// The sealed secrets of a target that sign at `now`.
pub async fn secrets(conn: &mut Conn, target: WebhookId, now: Timestamp) -> Result<Option<SealedSecrets>, StoreError> {
    let sql = "SELECT secret, CASE WHEN previous_until > $1 THEN previous_secret END AS previous \
               FROM webhook_targets WHERE id = $2 AND deleted_at IS NULL";
    let found = sqlx::query(sql).bind(now.micros()).bind(target.to_string()).fetch_optional(conn).await?;
    let read = |found: AnyRow| {
        Ok(SealedSecrets { current: row::get(&found, "secret")?, previous: row::get(&found, "previous")? })
    };
    found.map(read).transpose()
}

/// Locks a target's row until the transaction ends; false if it is not at this place.
pub async fn lock(conn: &mut Conn, place: Place, target: WebhookId) -> Result<bool, StoreError> {
    let sql = "UPDATE webhook_targets SET url = url WHERE id = $1 AND service_id = $2 AND deleted_at IS NULL";
    let query = sqlx::query(sql).bind(target.to_string()).bind(service_text(place));
    Ok(query.execute(conn).await?.rows_affected() == 1)
}

/// The target of this id, if it is at this place.
pub async fn find(conn: &mut Conn, place: Place, target: WebhookId) -> Result<Option<Target>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM webhook_targets WHERE id = $1 AND service_id = $2 AND deleted_at IS NULL");
    let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(target.to_string()).bind(service_text(place));
    query.fetch_optional(conn).await?.as_ref().map(read_target).transpose()
}

/// The targets of a place, oldest first.
pub async fn list(conn: &mut Conn, place: Place) -> Result<Vec<Target>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM webhook_targets WHERE service_id = $1 AND deleted_at IS NULL ORDER BY id");
    let rows = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(service_text(place)).fetch_all(conn).await?;
    rows.iter().map(read_target).collect()
}

/// Active targets for which something is due.
pub async fn due(conn: &mut Conn, now: Timestamp) -> Result<Vec<Target>, StoreError> {
    let sql = format!(
        "SELECT {COLUMNS} FROM webhook_targets t WHERE {ACTIVE} \
         AND EXISTS (SELECT 1 FROM webhook_deliveries d WHERE d.target_id = t.id AND d.due_at <= $1 \
         AND d.test_asked_at IS NULL)"
    );
    let rows = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(now.micros()).fetch_all(conn).await?;
    Ok(rows.iter().filter_map(readable).collect())
}

/// When a target was changed last, if events are delivered to it.
pub async fn active_as_of(conn: &mut Conn, target: WebhookId) -> Result<Option<Timestamp>, StoreError> {
    let sql = format!("SELECT t.updated_at FROM webhook_targets t WHERE {ACTIVE} AND t.id = $1");
    let found = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(target.to_string()).fetch_optional(conn).await?;
    found.map(|found| row::instant(&found, "updated_at")).transpose()
}

/// Targets for which a test is due, whether they are active or not.
pub async fn due_tests(conn: &mut Conn, now: Timestamp) -> Result<Vec<Target>, StoreError> {
    let sql = format!(
        "SELECT {COLUMNS} FROM webhook_targets t WHERE t.deleted_at IS NULL AND t.id IN \
         (SELECT d.target_id FROM webhook_deliveries d WHERE d.test_asked_at IS NOT NULL AND d.due_at <= $1)"
    );
    let rows = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(now.micros()).fetch_all(conn).await?;
    Ok(rows.iter().filter_map(readable).collect())
}

/// Since when the oldest delivery waits that could be made: its target is active and takes what it is sent.
pub async fn waiting_since(conn: &mut Conn, now: Timestamp) -> Result<Option<Timestamp>, StoreError> {
    let sql = format!(
        "SELECT MIN(oldest) AS oldest FROM (SELECT (SELECT CASE WHEN MIN(d.due_at) < t.active_since THEN t.active_since \
         ELSE MIN(d.due_at) END FROM webhook_deliveries d WHERE d.target_id = t.id AND d.due_at <= $1) AS oldest \
         FROM webhook_targets t WHERE {ACTIVE} AND t.failing_since IS NULL \
         UNION ALL SELECT MIN(o.occurred_at) AS oldest FROM webhook_outbox o) waiting"
    );
    let found = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(now.micros()).fetch_one(conn).await?;
    row::optional_instant(&found, "oldest")
}

/// Holds a target's row until the transaction ends. Whoever changes deliveries to several targets holds these before, in
/// the order of their ids.
pub async fn hold(conn: &mut Conn, target: WebhookId) -> Result<(), StoreError> {
    sqlx::query("UPDATE webhook_targets SET url = url WHERE id = $1").bind(target.to_string()).execute(conn).await?;
    Ok(())
}

/// Notes that a target takes what it is sent.
pub async fn set_well(conn: &mut Conn, target: WebhookId) -> Result<(), StoreError> {
    let sql = "UPDATE webhook_targets SET failing_since = NULL, failed_at = NULL WHERE id = $1";
    sqlx::query(sql).bind(target.to_string()).execute(conn).await?;
    Ok(())
}

/// Notes that a target failed at this URL, if that is where it is. Since when it fails begins anew if it was not tried
/// since `horizon`: one try is no proof.
pub async fn set_failing(
    conn: &mut Conn,
    (target, url): (WebhookId, &TargetUrl),
    (at, horizon): (Timestamp, Timestamp),
) -> Result<(), StoreError> {
    let sql = "UPDATE webhook_targets SET failing_since = CASE WHEN failed_at >= $1 THEN COALESCE(failing_since, $2) \
               ELSE $2 END, failed_at = $2 WHERE id = $3 AND url = $4";
    let query = sqlx::query(sql).bind(horizon.micros()).bind(at.micros()).bind(target.to_string());
    query.bind(url.to_string()).execute(conn).await?;
    Ok(())
}

/// Disables a target, if it is at this URL; gives its place, or nothing if it was disabled before. One that is failing is
/// disabled only if it has been since `horizon`.
pub async fn disable(
    conn: &mut Conn,
    (target, url): (WebhookId, &TargetUrl),
    reason: DisabledReason,
    (now, horizon): (Timestamp, Timestamp),
) -> Result<Option<Place>, StoreError> {
    let sql = "UPDATE webhook_targets SET disabled_at = $1, disabled_reason = $2 WHERE id = $3 AND disabled_at IS NULL \
               AND deleted_at IS NULL AND url = $5 AND ($2 = 'gone' OR failing_since <= $4) RETURNING service_id";
    let query = sqlx::query(sql).bind(now.micros()).bind(reason.as_str()).bind(target.to_string());
    let found = query.bind(horizon.micros()).bind(url.to_string()).fetch_optional(conn).await?;
    found.as_ref().map(read_place).transpose()
}

/// Takes a target out of use; its deliveries are removed bit by bit, and then it.
pub async fn delete(conn: &mut Conn, target: WebhookId, now: Timestamp) -> Result<(), StoreError> {
    // What signs for nobody is not kept.
    let sql = "UPDATE webhook_targets SET deleted_at = $1, secret = '', previous_secret = NULL WHERE id = $2";
    sqlx::query(sql).bind(now.micros()).bind(target.to_string()).execute(conn).await?;
    Ok(())
}

/// Every target, with whether it is being removed.
pub async fn all(conn: &mut Conn) -> Result<Vec<(WebhookId, bool)>, StoreError> {
    let rows = sqlx::query("SELECT id, deleted_at FROM webhook_targets ORDER BY id").fetch_all(conn).await?;
    let read = |found| Ok((row::parse(found, "id")?, row::optional_instant(found, "deleted_at")?.is_some()));
    rows.iter().map(read).collect()
}

/// Removes what [`delete`] took out of use, if nobody can have begun before that and still be at work.
pub async fn remove(conn: &mut Conn, target: WebhookId, before: Timestamp) -> Result<(), StoreError> {
    let sql = "DELETE FROM webhook_targets WHERE id = $1 AND deleted_at <= $2";
    sqlx::query(sql).bind(target.to_string()).bind(before.micros()).execute(conn).await?;
    Ok(())
}

/// Forgets secrets of before that sign no more.
pub async fn forget_secrets(conn: &mut Conn, now: Timestamp) -> Result<(), StoreError> {
    let sql = "UPDATE webhook_targets SET previous_secret = NULL, previous_until = NULL WHERE previous_until <= $1";
    sqlx::query(sql).bind(now.micros()).execute(conn).await?;
    Ok(())
}

/// A row that does not read holds up nobody else.
fn readable(found: &AnyRow) -> Option<Target> {
    read_target(found).inspect_err(|error| tracing::error!(%error, "a webhook cannot be read, and is passed over")).ok()
}

fn service_text(place: Place) -> String {
    place.service().map_or(String::new(), |service| service.to_string())
}

fn write_events(filter: &EventFilter) -> String {
    match filter.names()[..] {
        [EventFilter::ALL] => String::new(),
        ref names => format!(",{},", names.join(",")),
    }
}

fn read_events(text: &str) -> Result<EventFilter, StoreError> {
    let names: Vec<_> = text.split(',').filter(|name| !name.is_empty()).collect();
    let names = if names.is_empty() { vec![EventFilter::ALL] } else { names };
    EventFilter::parse(names).map_err(|_| StoreError::Corrupt("events"))
}

fn read_place(found: &AnyRow) -> Result<Place, StoreError> {
    match row::get::<String>(found, "service_id")?.as_str() {
        "" => Ok(Place::Deployment),
        _ => Ok(Place::Service(row::parse(found, "service_id")?)),
    }
}

fn read_target(found: &AnyRow) -> Result<Target, StoreError> {
    let reason: Option<String> = row::get(found, "disabled_reason")?;
    let reason = reason.map(|reason| DisabledReason::parse(&reason).ok_or(StoreError::Corrupt("disabled_reason")));
    Ok(Target {
        id: row::parse(found, "id")?,
        place: read_place(found)?,
        url: TargetUrl::parse(&row::get::<String>(found, "url")?).map_err(|_| StoreError::Corrupt("url"))?,
        events: read_events(&row::get::<String>(found, "events")?)?,
        description: row::convert::<Description>(found, "description")?,
        created_at: row::instant(found, "created_at")?,
        updated_at: row::instant(found, "updated_at")?,
        paused_at: row::optional_instant(found, "paused_at")?,
        disabled: row::optional_instant(found, "disabled_at")?.zip(reason.transpose()?),
        failing_since: row::optional_instant(found, "failing_since")?,
        previous_until: row::optional_instant(found, "previous_until")?,
    })
}
