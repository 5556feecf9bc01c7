//! Webhook targets and their sealed secrets.

use super::{Conn, StoreError, row, statements::statements};
use crate::domain::{
    text::Description,
    webhook::{DisabledReason, WebhookScope, WebhookTarget, event::EventFilter, url::TargetUrl},
};
use countersign_identity::{Timestamp, WebhookId};
use sqlx::any::AnyRow;

macro_rules! columns {
    () => {
        "id, service_id, url, events, description, created_at, updated_at, paused_at, disabled_at, disabled_reason, \
         failing_since, previous_until"
    };
}

/// The condition for active targets.
macro_rules! active {
    () => {
        "t.deleted_at IS NULL AND t.paused_at IS NULL AND t.disabled_at IS NULL"
    };
}

statements! { STATEMENTS:
    INSERT = "INSERT INTO webhook_targets (id, service_id, url, events, description, secret, created_at, updated_at, \
         active_since) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $7)";
    UPDATE = "UPDATE webhook_targets SET url = $1, events = $2, description = $3, updated_at = $4, paused_at = $5, \
         disabled_at = $6, disabled_reason = $7, failing_since = $8, \
         active_since = CASE WHEN $10 = 1 THEN $4 ELSE active_since END WHERE id = $9";
    ROTATE_SECRET =
        "UPDATE webhook_targets SET previous_secret = secret, previous_until = $1, secret = $2 WHERE id = $3";
    SECRETS = "SELECT secret, CASE WHEN previous_until > $1 THEN previous_secret END AS previous \
         FROM webhook_targets WHERE id = $2 AND deleted_at IS NULL";
    LOCK = "UPDATE webhook_targets SET url = url WHERE id = $1 AND service_id = $2 AND deleted_at IS NULL";
    LOCK_ANY_SCOPE = "UPDATE webhook_targets SET url = url WHERE id = $1";
    FIND = concat!(
        "SELECT ", columns!(), " FROM webhook_targets WHERE id = $1 AND service_id = $2 AND deleted_at IS NULL"
    );
    LIST = concat!(
        "SELECT ", columns!(), " FROM webhook_targets WHERE service_id = $1 AND deleted_at IS NULL ORDER BY id"
    );
    WITH_DUE_DELIVERIES = concat!(
        "SELECT ", columns!(), " FROM webhook_targets t WHERE ", active!(),
        " AND EXISTS (SELECT 1 FROM webhook_deliveries d WHERE d.target_id = t.id AND d.due_at <= $1 \
         AND d.test_asked_at IS NULL)"
    );
    UPDATED_AT_IF_ACTIVE = concat!("SELECT t.updated_at FROM webhook_targets t WHERE ", active!(), " AND t.id = $1");
    WITH_DUE_TESTS = concat!(
        "SELECT ", columns!(), " FROM webhook_targets t WHERE t.deleted_at IS NULL AND t.id IN \
         (SELECT d.target_id FROM webhook_deliveries d WHERE d.test_asked_at IS NOT NULL AND d.due_at <= $1)"
    );
    OLDEST_DUE = concat!(
        "SELECT MIN(oldest) AS oldest FROM (SELECT (SELECT CASE WHEN MIN(d.due_at) < t.active_since THEN t.active_since \
         ELSE MIN(d.due_at) END FROM webhook_deliveries d WHERE d.target_id = t.id AND d.due_at <= $1) AS oldest \
         FROM webhook_targets t WHERE ", active!(), " AND t.failing_since IS NULL \
         UNION ALL SELECT MIN(o.occurred_at) AS oldest FROM webhook_outbox o) waiting"
    );
    MARK_HEALTHY = "UPDATE webhook_targets SET failing_since = NULL, failed_at = NULL WHERE id = $1";
    MARK_FAILING = "UPDATE webhook_targets SET failing_since = CASE WHEN failed_at >= $1 THEN COALESCE(failing_since, $2) \
         ELSE $2 END, failed_at = $2 WHERE id = $3 AND url = $4";
    DISABLE = "UPDATE webhook_targets SET disabled_at = $1, disabled_reason = $2 WHERE id = $3 AND disabled_at IS NULL \
         AND deleted_at IS NULL AND url = $5 AND ($2 = 'gone' OR failing_since <= $4) RETURNING service_id";
    MARK_DELETED = "UPDATE webhook_targets SET deleted_at = $1, secret = '', previous_secret = NULL WHERE id = $2";
    LIST_ALL = "SELECT id, deleted_at FROM webhook_targets ORDER BY id";
    DELETE_ROW = "DELETE FROM webhook_targets WHERE id = $1 AND deleted_at <= $2";
    DELETE_EXPIRED_SECRETS =
        "UPDATE webhook_targets SET previous_secret = NULL, previous_until = NULL WHERE previous_until <= $1";
}

/// The secrets of a target that sign now, encrypted with the master key.
#[derive(Clone)]
pub struct SealedSecrets {
    /// The current secret.
    pub current: String,
    /// The previous secret, while it still signs.
    pub previous: Option<String>,
}

/// Inserts a new target.
pub async fn insert(conn: &mut Conn, target: &WebhookTarget, sealed: &str) -> Result<(), StoreError> {
    sqlx::query(INSERT)
        .bind(target.id.to_string())
        .bind(service_text(target.scope))
        .bind(target.url.to_string())
        .bind(format_events(&target.events))
        .bind(target.description.as_str())
        .bind(sealed)
        .bind(target.created_at.micros())
        .bind(target.updated_at.micros())
        .execute(conn)
        .await?;
    Ok(())
}

/// Stores the fields of a target that a change can affect. `resumed` says that it became active with this change.
pub async fn update(conn: &mut Conn, target: &WebhookTarget, resumed: bool) -> Result<(), StoreError> {
    sqlx::query(UPDATE)
        .bind(target.url.to_string())
        .bind(format_events(&target.events))
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

/// Replaces the secret. The previous one also signs, until `until`.
pub async fn rotate_secret(
    conn: &mut Conn,
    target: WebhookId,
    sealed: &str,
    until: Timestamp,
) -> Result<(), StoreError> {
    sqlx::query(ROTATE_SECRET).bind(until.micros()).bind(sealed).bind(target.to_string()).execute(conn).await?;
    Ok(())
}

/// The secrets of a target that sign at `now`; `None` if the target is deleted.
pub async fn secrets(conn: &mut Conn, target: WebhookId, now: Timestamp) -> Result<Option<SealedSecrets>, StoreError> {
    let row = sqlx::query(SECRETS).bind(now.micros()).bind(target.to_string()).fetch_optional(conn).await?;
    let read =
        |row: AnyRow| Ok(SealedSecrets { current: row::get(&row, "secret")?, previous: row::get(&row, "previous")? });
    row.map(read).transpose()
}

/// Locks the row of a target until the transaction ends. Returns false if the scope has no such target.
pub async fn lock(conn: &mut Conn, scope: WebhookScope, target: WebhookId) -> Result<bool, StoreError> {
    let query = sqlx::query(LOCK).bind(target.to_string()).bind(service_text(scope));
    Ok(query.execute(conn).await?.rows_affected() == 1)
}

/// The target with this id, if it is in this scope.
pub async fn find(
    conn: &mut Conn,
    scope: WebhookScope,
    target: WebhookId,
) -> Result<Option<WebhookTarget>, StoreError> {
    let query = sqlx::query(FIND).bind(target.to_string()).bind(service_text(scope));
    query.fetch_optional(conn).await?.as_ref().map(read_target).transpose()
}

/// The targets of a scope, oldest first.
pub async fn list(conn: &mut Conn, scope: WebhookScope) -> Result<Vec<WebhookTarget>, StoreError> {
    let rows = sqlx::query(LIST).bind(service_text(scope)).fetch_all(conn).await?;
    rows.iter().map(read_target).collect()
}

/// Active targets with due deliveries.
pub async fn with_due_deliveries(conn: &mut Conn, now: Timestamp) -> Result<Vec<WebhookTarget>, StoreError> {
    let rows = sqlx::query(WITH_DUE_DELIVERIES).bind(now.micros()).fetch_all(conn).await?;
    Ok(rows.iter().filter_map(read_or_skip).collect())
}

/// When an active target was last changed; `None` if the target is not active.
pub async fn updated_at_if_active(conn: &mut Conn, target: WebhookId) -> Result<Option<Timestamp>, StoreError> {
    let row = sqlx::query(UPDATED_AT_IF_ACTIVE).bind(target.to_string()).fetch_optional(conn).await?;
    row.map(|row| row::timestamp(&row, "updated_at")).transpose()
}

/// Targets with a due test, active or not.
pub async fn with_due_tests(conn: &mut Conn, now: Timestamp) -> Result<Vec<WebhookTarget>, StoreError> {
    let rows = sqlx::query(WITH_DUE_TESTS).bind(now.micros()).fetch_all(conn).await?;
    Ok(rows.iter().filter_map(read_or_skip).collect())
}

/// Due time of the oldest delivery to an active target that does not fail, or time of the oldest event in the outbox. A
/// delivery to a target that was resumed counts from then.
pub async fn oldest_due(conn: &mut Conn, now: Timestamp) -> Result<Option<Timestamp>, StoreError> {
    let row = sqlx::query(OLDEST_DUE).bind(now.micros()).fetch_one(conn).await?;
    row::optional_timestamp(&row, "oldest")
}

/// Locks the row of a target in any scope until the transaction ends. A transaction that changes deliveries of several
/// targets locks these first, in the order of their ids, to avoid deadlocks.
pub async fn lock_any_scope(conn: &mut Conn, target: WebhookId) -> Result<(), StoreError> {
    sqlx::query(LOCK_ANY_SCOPE).bind(target.to_string()).execute(conn).await?;
    Ok(())
}

/// Records that a target accepts deliveries again.
pub async fn mark_healthy(conn: &mut Conn, target: WebhookId) -> Result<(), StoreError> {
    sqlx::query(MARK_HEALTHY).bind(target.to_string()).execute(conn).await?;
    Ok(())
}

/// Records a failure at this URL, unless the URL of the target has changed. If the previous failure is older than
/// `horizon`, a new failing period begins: two failures far apart do not show that the target failed all the time.
pub async fn mark_failing(
    conn: &mut Conn,
    (target, url): (WebhookId, &TargetUrl),
    (at, horizon): (Timestamp, Timestamp),
) -> Result<(), StoreError> {
    let query = sqlx::query(MARK_FAILING).bind(horizon.micros()).bind(at.micros()).bind(target.to_string());
    query.bind(url.to_string()).execute(conn).await?;
    Ok(())
}

/// Disables a target, unless its URL has changed. With [`DisabledReason::Failing`], only if it has been failing since
/// `horizon`. Returns the scope if this call disabled the target.
pub async fn disable(
    conn: &mut Conn,
    (target, url): (WebhookId, &TargetUrl),
    reason: DisabledReason,
    (now, horizon): (Timestamp, Timestamp),
) -> Result<Option<WebhookScope>, StoreError> {
    let query = sqlx::query(DISABLE).bind(now.micros()).bind(reason.as_str()).bind(target.to_string());
    let row = query.bind(horizon.micros()).bind(url.to_string()).fetch_optional(conn).await?;
    row.as_ref().map(read_scope).transpose()
}

/// Marks a target as deleted. Housekeeping deletes its deliveries in batches, and then the row.
pub async fn mark_deleted(conn: &mut Conn, target: WebhookId, now: Timestamp) -> Result<(), StoreError> {
    // The secrets are erased at once, since they sign nothing any more.
    sqlx::query(MARK_DELETED).bind(now.micros()).bind(target.to_string()).execute(conn).await?;
    Ok(())
}

/// All targets, each with whether it is marked as deleted.
pub async fn list_all(conn: &mut Conn) -> Result<Vec<(WebhookId, bool)>, StoreError> {
    let rows = sqlx::query(LIST_ALL).fetch_all(conn).await?;
    let read = |row| Ok((row::parse(row, "id")?, row::optional_timestamp(row, "deleted_at")?.is_some()));
    rows.iter().map(read).collect()
}

/// Deletes the row of a target that was marked as deleted at or before `before`. No transaction that began earlier must
/// still run, since it could insert deliveries.
pub async fn delete_row(conn: &mut Conn, target: WebhookId, before: Timestamp) -> Result<(), StoreError> {
    sqlx::query(DELETE_ROW).bind(target.to_string()).bind(before.micros()).execute(conn).await?;
    Ok(())
}

/// Deletes previous secrets that no longer sign.
pub async fn delete_expired_secrets(conn: &mut Conn, now: Timestamp) -> Result<(), StoreError> {
    sqlx::query(DELETE_EXPIRED_SECRETS).bind(now.micros()).execute(conn).await?;
    Ok(())
}

/// Skips a row that cannot be read, so that it does not block the other targets.
fn read_or_skip(row: &AnyRow) -> Option<WebhookTarget> {
    read_target(row)
        .inspect_err(|error| tracing::error!(%error, "cannot read a webhook from the database; skipping it"))
        .ok()
}

fn service_text(scope: WebhookScope) -> String {
    scope.service().map_or(String::new(), |service| service.to_string())
}

fn format_events(filter: &EventFilter) -> String {
    match filter.names()[..] {
        [EventFilter::ALL] => String::new(),
        ref names => format!(",{},", names.join(",")),
    }
}

fn parse_events(text: &str) -> Result<EventFilter, StoreError> {
    let names: Vec<_> = text.split(',').filter(|name| !name.is_empty()).collect();
    let names = if names.is_empty() { vec![EventFilter::ALL] } else { names };
    EventFilter::parse(names).map_err(|_| StoreError::Corrupt("events"))
}

fn read_scope(row: &AnyRow) -> Result<WebhookScope, StoreError> {
    match row::get::<String>(row, "service_id")?.as_str() {
        "" => Ok(WebhookScope::Deployment),
        _ => Ok(WebhookScope::Service(row::parse(row, "service_id")?)),
    }
}

fn read_target(row: &AnyRow) -> Result<WebhookTarget, StoreError> {
    let reason: Option<String> = row::get(row, "disabled_reason")?;
    let reason = reason.map(|reason| DisabledReason::parse(&reason).ok_or(StoreError::Corrupt("disabled_reason")));
    Ok(WebhookTarget {
        id: row::parse(row, "id")?,
        scope: read_scope(row)?,
        url: TargetUrl::parse(&row::get::<String>(row, "url")?).map_err(|_| StoreError::Corrupt("url"))?,
        events: parse_events(&row::get::<String>(row, "events")?)?,
        description: row::convert::<Description>(row, "description")?,
        created_at: row::timestamp(row, "created_at")?,
        updated_at: row::timestamp(row, "updated_at")?,
        paused_at: row::optional_timestamp(row, "paused_at")?,
        disabled: row::optional_timestamp(row, "disabled_at")?.zip(reason.transpose()?),
        failing_since: row::optional_timestamp(row, "failing_since")?,
        previous_until: row::optional_timestamp(row, "previous_until")?,
    })
}
