//! The table of webhook targets with their encrypted secrets.

use super::{
    Conn, StoreError,
    query::{Parameter, ToParameter, params, text_or_empty},
    row,
    statements::statements,
};
use crate::domain::{
    service::ServiceOrDeployment,
    text::Description,
    webhook::{DisabledReason, WebhookTarget, event::EventFilter, url::TargetUrl},
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

/// The secrets that sign the deliveries to a target, encrypted with the master key.
#[derive(Clone)]
pub struct SealedSecrets {
    /// The current secret.
    pub current: String,
    /// The previous secret, while it still signs.
    pub previous: Option<String>,
}

/// Inserts a new target.
pub async fn insert(conn: &mut Conn, target: &WebhookTarget, sealed: &str) -> Result<(), StoreError> {
    let WebhookTarget { id, scope, url, events, description, managed_by, created_at, updated_at, .. } = target;
    let parameters = params![id, scope, url, events, description, sealed, created_at, updated_at, managed_by];
    conn.apply(INSERT_TARGET, parameters).await
}

/// Stores the fields of a target that a change can affect. `resumed`: the change makes the target active.
pub async fn update(conn: &mut Conn, target: &WebhookTarget, resumed: bool) -> Result<(), StoreError> {
    let parameters = params![
        target.url,
        target.events,
        target.description,
        target.updated_at,
        target.paused_at,
        target.disabled.map(|(at, _)| at),
        target.disabled.map(|(_, reason)| reason),
        target.failing_since,
        target.id,
        resumed,
        target.managed_by,
    ];
    conn.apply(UPDATE_TARGET, parameters).await
}

/// Replaces the secret of a target. The previous secret also signs until `until`.
pub async fn rotate_secret(
    conn: &mut Conn,
    target: WebhookId,
    sealed: &str,
    until: Timestamp,
) -> Result<(), StoreError> {
    conn.apply(ROTATE_SECRET, params![until, sealed, target]).await
}

/// Finds the secrets of a target that sign at `now`; `None` if the target is deleted.
pub async fn find_secrets(
    conn: &mut Conn,
    target: WebhookId,
    now: Timestamp,
) -> Result<Option<SealedSecrets>, StoreError> {
    let secrets_from_row =
        |row: &AnyRow| Ok(SealedSecrets { current: row::get(row, "secret")?, previous: row::get(row, "previous")? });
    conn.find_row(FIND_SECRETS, params![now, target], secrets_from_row).await
}

/// Locks the row of a target until the transaction ends. Returns false if the scope has no such target.
pub async fn lock(conn: &mut Conn, scope: ServiceOrDeployment, target: WebhookId) -> Result<bool, StoreError> {
    conn.changes_row(LOCK_TARGET, params![target, scope]).await
}

/// Finds a target by id. Returns `None` if the target is in another scope.
pub async fn find(
    conn: &mut Conn,
    scope: ServiceOrDeployment,
    target: WebhookId,
) -> Result<Option<WebhookTarget>, StoreError> {
    conn.find_row(FIND_TARGET, params![target, scope], target_from_row).await
}

/// Lists the targets of a scope (a service, or the whole Countersign deployment), oldest first.
pub async fn list(conn: &mut Conn, scope: ServiceOrDeployment) -> Result<Vec<WebhookTarget>, StoreError> {
    conn.list_rows(LIST_TARGETS, params![scope], target_from_row).await
}

/// Finds the time of the last change of a target; `None` if the target is not active.
pub async fn updated_at_if_active(conn: &mut Conn, target: WebhookId) -> Result<Option<Timestamp>, StoreError> {
    conn.find_row(UPDATED_AT_IF_ACTIVE, params![target], |row| row::timestamp(row, "updated_at")).await
}

/// Locks the row of a target in any scope until the transaction ends. A transaction that changes deliveries of several targets
/// must first lock the targets in the order of their ids, to avoid deadlocks.
pub async fn lock_any_scope(conn: &mut Conn, target: WebhookId) -> Result<(), StoreError> {
    conn.apply(LOCK_TARGET_IN_ANY_SCOPE, params![target]).await
}

/// Records that a target accepted a delivery.
pub async fn mark_healthy(conn: &mut Conn, target: WebhookId) -> Result<(), StoreError> {
    conn.apply(MARK_HEALTHY, params![target]).await
}

/// Records a failed delivery to the URL `url`, unless the target now has another URL. If the previous failure is older than
/// `horizon`, a new failing period begins: failures with a long time between them do not prove that the target always fails.
pub async fn mark_failing(
    conn: &mut Conn,
    target: WebhookId,
    url: &TargetUrl,
    at: Timestamp,
    horizon: Timestamp,
) -> Result<(), StoreError> {
    conn.apply(MARK_FAILING, params![horizon, at, target, url]).await
}

/// Disables a target, unless it now has another URL. For [`DisabledReason::Failing`], it must have been failing since `horizon` or
/// earlier. Returns the scope if this call disabled the target.
pub async fn disable(
    conn: &mut Conn,
    target: WebhookId,
    url: &TargetUrl,
    reason: DisabledReason,
    now: Timestamp,
    horizon: Timestamp,
) -> Result<Option<ServiceOrDeployment>, StoreError> {
    conn.find_row(DISABLE_TARGET, params![now, reason, target, horizon, url], scope_from_row).await
}

/// Marks a target as deleted. Later, housekeeping deletes its deliveries and then its row, see [`super::webhook_cleanup`].
pub async fn mark_deleted(conn: &mut Conn, target: WebhookId, now: Timestamp) -> Result<(), StoreError> {
    // This also erases the secrets, because nobody needs them for signatures any more.
    conn.apply(MARK_DELETED, params![now, target]).await
}

/// The column `service_id` of a target or an event, which is empty for the deployment.
impl ToParameter for ServiceOrDeployment {
    const NULL: Parameter = Parameter::Text(None);

    fn to_parameter(&self) -> Parameter {
        text_or_empty(self.service()).to_parameter()
    }
}

/// The column `events` of a target: the kinds, with a comma before and after each; empty for all kinds.
impl ToParameter for EventFilter {
    const NULL: Parameter = Parameter::Text(None);

    fn to_parameter(&self) -> Parameter {
        match self.names()[..] {
            [Self::ALL] => String::new().to_parameter(),
            ref names => format!(",{},", names.join(",")).to_parameter(),
        }
    }
}

fn event_filter_from_column(text: &str) -> Result<EventFilter, StoreError> {
    let names: Vec<_> = text.split(',').filter(|name| !name.is_empty()).collect();
    let names = if names.is_empty() { vec![EventFilter::ALL] } else { names };
    EventFilter::parse(names).map_err(|_| StoreError::Corrupt("events"))
}

/// The scope of a target.
pub(super) fn scope_from_row(row: &AnyRow) -> Result<ServiceOrDeployment, StoreError> {
    match row::get::<String>(row, "service_id")?.as_str() {
        "" => Ok(ServiceOrDeployment::Deployment),
        _ => Ok(ServiceOrDeployment::Service(row::parse(row, "service_id")?)),
    }
}

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
