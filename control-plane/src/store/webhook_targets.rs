//! The table of webhook targets with their encrypted secrets.

use super::{Conn, StoreError, row, statements::statements};
use crate::domain::{
    text::{Description, ManagedBy},
    webhook::{DisabledReason, WebhookScope, WebhookTarget, event::EventFilter, url::TargetUrl},
};
use countersign_identity::{Timestamp, WebhookId};
use sqlx::any::AnyRow;

macro_rules! columns {
    () => {
        "id, service_id, url, events, description, created_at, updated_at, paused_at, disabled_at, disabled_reason, \
         failing_since, previous_until, managed_by"
    };
}

/// The condition for active targets.
macro_rules! is_active {
    () => {
        "t.deleted_at IS NULL AND t.paused_at IS NULL AND t.disabled_at IS NULL"
    };
}
pub(super) use is_active;

statements! { STATEMENTS:
    INSERT_TARGET = "INSERT INTO webhook_targets (id, service_id, url, events, description, secret, created_at, updated_at, \
         active_since, managed_by) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $7, $9)";
    UPDATE_TARGET = "UPDATE webhook_targets SET url = $1, events = $2, description = $3, updated_at = $4, paused_at = $5, \
         disabled_at = $6, disabled_reason = $7, failing_since = $8, managed_by = $11, \
         active_since = CASE WHEN $10 = 1 THEN $4 ELSE active_since END WHERE id = $9";
    ROTATE_SECRET =
        "UPDATE webhook_targets SET previous_secret = secret, previous_until = $1, secret = $2 WHERE id = $3";
    FIND_SECRETS = "SELECT secret, CASE WHEN previous_until > $1 THEN previous_secret END AS previous \
         FROM webhook_targets WHERE id = $2 AND deleted_at IS NULL";
    LOCK_TARGET = "UPDATE webhook_targets SET url = url WHERE id = $1 AND service_id = $2 AND deleted_at IS NULL";
    LOCK_TARGET_IN_ANY_SCOPE = "UPDATE webhook_targets SET url = url WHERE id = $1";
    FIND_TARGET = concat!(
        "SELECT ", columns!(), " FROM webhook_targets WHERE id = $1 AND service_id = $2 AND deleted_at IS NULL"
    );
    LIST_TARGETS = concat!(
        "SELECT ", columns!(), " FROM webhook_targets WHERE service_id = $1 AND deleted_at IS NULL ORDER BY id"
    );
    UPDATED_AT_IF_ACTIVE = concat!("SELECT t.updated_at FROM webhook_targets t WHERE ", is_active!(), " AND t.id = $1");
    MARK_HEALTHY = "UPDATE webhook_targets SET failing_since = NULL, failed_at = NULL WHERE id = $1";
    MARK_FAILING = "UPDATE webhook_targets SET failing_since = CASE WHEN failed_at >= $1 THEN COALESCE(failing_since, $2) \
         ELSE $2 END, failed_at = $2 WHERE id = $3 AND url = $4";
    DISABLE_TARGET = "UPDATE webhook_targets SET disabled_at = $1, disabled_reason = $2 WHERE id = $3 AND disabled_at IS NULL \
         AND deleted_at IS NULL AND url = $5 AND ($2 = 'gone' OR failing_since <= $4) RETURNING service_id";
    MARK_DELETED = "UPDATE webhook_targets SET deleted_at = $1, secret = '', previous_secret = NULL WHERE id = $2";
}

/// The current signing secrets of a target, encrypted with the master key.
#[derive(Clone)]
pub struct SealedSecrets {
    /// The current secret.
    pub current: String,
    /// The previous secret, while it still signs.
    pub previous: Option<String>,
}

/// Inserts a new target.
pub async fn insert(conn: &mut Conn, target: &WebhookTarget, sealed: &str) -> Result<(), StoreError> {
    sqlx::query(INSERT_TARGET)
        .bind(target.id.to_string())
        .bind(service_id_column(target.scope))
        .bind(target.url.to_string())
        .bind(event_filter_to_column(&target.events))
        .bind(target.description.as_str())
        .bind(sealed)
        .bind(target.created_at.micros())
        .bind(target.updated_at.micros())
        .bind(target.managed_by.as_ref().map(ManagedBy::as_str))
        .execute(conn)
        .await?;
    Ok(())
}

/// Stores the fields of a target that a change can affect. `resumed` is whether the change makes the target active.
pub async fn update(conn: &mut Conn, target: &WebhookTarget, resumed: bool) -> Result<(), StoreError> {
    sqlx::query(UPDATE_TARGET)
        .bind(target.url.to_string())
        .bind(event_filter_to_column(&target.events))
        .bind(target.description.as_str())
        .bind(target.updated_at.micros())
        .bind(target.paused_at.map(Timestamp::micros))
        .bind(target.disabled.map(|(at, _)| at.micros()))
        .bind(target.disabled.map(|(_, reason)| reason.as_str()))
        .bind(target.failing_since.map(Timestamp::micros))
        .bind(target.id.to_string())
        .bind(i64::from(resumed))
        .bind(target.managed_by.as_ref().map(ManagedBy::as_str))
        .execute(conn)
        .await?;
    Ok(())
}

/// Replaces the secret of a target. The previous secret also signs until `until`.
pub async fn rotate_secret(
    conn: &mut Conn,
    target: WebhookId,
    sealed: &str,
    until: Timestamp,
) -> Result<(), StoreError> {
    sqlx::query(ROTATE_SECRET).bind(until.micros()).bind(sealed).bind(target.to_string()).execute(conn).await?;
    Ok(())
}

/// Finds the secrets of a target that sign at `now`; `None` if the target is deleted.
pub async fn find_secrets(
    conn: &mut Conn,
    target: WebhookId,
    now: Timestamp,
) -> Result<Option<SealedSecrets>, StoreError> {
    let row = sqlx::query(FIND_SECRETS).bind(now.micros()).bind(target.to_string()).fetch_optional(conn).await?;
    let secrets_from_row =
        |row: AnyRow| Ok(SealedSecrets { current: row::get(&row, "secret")?, previous: row::get(&row, "previous")? });
    row.map(secrets_from_row).transpose()
}

/// Locks the row of a target until the transaction ends. Returns false if the scope has no such target.
pub async fn lock(conn: &mut Conn, scope: WebhookScope, target: WebhookId) -> Result<bool, StoreError> {
    let query = sqlx::query(LOCK_TARGET).bind(target.to_string()).bind(service_id_column(scope));
    Ok(query.execute(conn).await?.rows_affected() == 1)
}

/// Finds a target by id. Returns `None` if the target is in another scope.
pub async fn find(
    conn: &mut Conn,
    scope: WebhookScope,
    target: WebhookId,
) -> Result<Option<WebhookTarget>, StoreError> {
    let query = sqlx::query(FIND_TARGET).bind(target.to_string()).bind(service_id_column(scope));
    query.fetch_optional(conn).await?.as_ref().map(target_from_row).transpose()
}

/// Lists the targets of a scope (a service, or the whole Countersign deployment), oldest first.
pub async fn list(conn: &mut Conn, scope: WebhookScope) -> Result<Vec<WebhookTarget>, StoreError> {
    let rows = sqlx::query(LIST_TARGETS).bind(service_id_column(scope)).fetch_all(conn).await?;
    rows.iter().map(target_from_row).collect()
}

/// Finds the time of the last change of a target; `None` if the target is not active.
pub async fn updated_at_if_active(conn: &mut Conn, target: WebhookId) -> Result<Option<Timestamp>, StoreError> {
    let row = sqlx::query(UPDATED_AT_IF_ACTIVE).bind(target.to_string()).fetch_optional(conn).await?;
    row.map(|row| row::timestamp(&row, "updated_at")).transpose()
}

/// Locks the row of a target in any scope until the transaction ends. A transaction that changes deliveries of several targets
/// must first lock the targets in the order of their ids, to avoid deadlocks.
pub async fn lock_any_scope(conn: &mut Conn, target: WebhookId) -> Result<(), StoreError> {
    sqlx::query(LOCK_TARGET_IN_ANY_SCOPE).bind(target.to_string()).execute(conn).await?;
    Ok(())
}

/// Records that a target accepted a delivery.
pub async fn mark_healthy(conn: &mut Conn, target: WebhookId) -> Result<(), StoreError> {
    sqlx::query(MARK_HEALTHY).bind(target.to_string()).execute(conn).await?;
    Ok(())
}

/// Records a failed delivery to the URL `url`, unless the URL of the target has changed. If the previous failure is older than
/// `horizon`, a new failing period (time in which every attempt failed) begins, because failures with a long time between them
/// do not prove a permanent failure.
pub async fn mark_failing(
    conn: &mut Conn,
    target: WebhookId,
    url: &TargetUrl,
    at: Timestamp,
    horizon: Timestamp,
) -> Result<(), StoreError> {
    let query = sqlx::query(MARK_FAILING).bind(horizon.micros()).bind(at.micros()).bind(target.to_string());
    query.bind(url.to_string()).execute(conn).await?;
    Ok(())
}

/// Disables a target, unless its URL has changed. If the reason is [`DisabledReason::Failing`], disables the target only if it
/// has been failing since `horizon` or earlier. Returns the scope if this call disabled the target.
pub async fn disable(
    conn: &mut Conn,
    target: WebhookId,
    url: &TargetUrl,
    reason: DisabledReason,
    now: Timestamp,
    horizon: Timestamp,
) -> Result<Option<WebhookScope>, StoreError> {
    let query = sqlx::query(DISABLE_TARGET).bind(now.micros()).bind(reason.as_str()).bind(target.to_string());
    let row = query.bind(horizon.micros()).bind(url.to_string()).fetch_optional(conn).await?;
    row.as_ref().map(scope_from_row).transpose()
}

/// Marks a target as deleted. Housekeeping (see [`super::webhook_cleanup`]) later deletes the deliveries of the target in batches, and then the row of the
/// target.
pub async fn mark_deleted(conn: &mut Conn, target: WebhookId, now: Timestamp) -> Result<(), StoreError> {
    // The secrets of a deleted target are erased at once, because they are no longer needed for signatures.
    sqlx::query(MARK_DELETED).bind(now.micros()).bind(target.to_string()).execute(conn).await?;
    Ok(())
}

fn service_id_column(scope: WebhookScope) -> String {
    scope.service().map_or(String::new(), |service| service.to_string())
}

fn event_filter_to_column(filter: &EventFilter) -> String {
    match filter.names()[..] {
        [EventFilter::ALL] => String::new(),
        ref names => format!(",{},", names.join(",")),
    }
}

fn event_filter_from_column(text: &str) -> Result<EventFilter, StoreError> {
    let names: Vec<_> = text.split(',').filter(|name| !name.is_empty()).collect();
    let names = if names.is_empty() { vec![EventFilter::ALL] } else { names };
    EventFilter::parse(names).map_err(|_| StoreError::Corrupt("events"))
}

/// The scope of a target.
pub(super) fn scope_from_row(row: &AnyRow) -> Result<WebhookScope, StoreError> {
    match row::get::<String>(row, "service_id")?.as_str() {
        "" => Ok(WebhookScope::Deployment),
        _ => Ok(WebhookScope::Service(row::parse(row, "service_id")?)),
    }
}

/// The URL of a target.
pub(super) fn url_from_row(row: &AnyRow) -> Result<TargetUrl, StoreError> {
    TargetUrl::parse(&row::get::<String>(row, "url")?).map_err(|_| StoreError::Corrupt("url"))
}

fn target_from_row(row: &AnyRow) -> Result<WebhookTarget, StoreError> {
    let reason: Option<String> = row::get(row, "disabled_reason")?;
    let reason = reason.map(|reason| DisabledReason::parse(&reason).ok_or(StoreError::Corrupt("disabled_reason")));
    Ok(WebhookTarget {
        id: row::parse(row, "id")?,
        scope: scope_from_row(row)?,
        url: url_from_row(row)?,
        events: event_filter_from_column(&row::get::<String>(row, "events")?)?,
        description: row::convert::<Description>(row, "description")?,
        managed_by: row::convert_optional(row, "managed_by")?,
        created_at: row::timestamp(row, "created_at")?,
        updated_at: row::timestamp(row, "updated_at")?,
        paused_at: row::optional_timestamp(row, "paused_at")?,
        disabled: row::optional_timestamp(row, "disabled_at")?.zip(reason.transpose()?),
        failing_since: row::optional_timestamp(row, "failing_since")?,
        previous_secret_until: row::optional_timestamp(row, "previous_until")?,
    })
}
