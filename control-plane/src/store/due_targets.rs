//! The webhook targets with due deliveries, read in pages.
//!
//! A page goes from one target with pending deliveries to the next one by an index. So a page takes the same time however many
//! other targets and deliveries there are.

use super::{
    Conn, StoreError,
    agents::owner_from_row,
    query::{params, text_or_empty},
    row,
    statements::statements,
    webhook_targets::{is_active, scope_from_row, url_from_row},
};
use crate::domain::{
    service::ServiceOrDeployment,
    webhook::{DueTarget, TargetOwner},
};
use countersign_identity::{Timestamp, WebhookId};
use sqlx::any::AnyRow;

/// Selects the next `$3` targets with pending deliveries after the target `$2`. `oldest` is the earliest due time of a target, if a
/// delivery is due at `$1`. Test deliveries do not count for `oldest`. Without the second limit, PostgreSQL would make the search
/// for the oldest delivery a condition of the join, and read all targets.
macro_rules! pending_targets {
    ($select:expr, $conditions:expr) => {
        concat!(
            "WITH RECURSIVE pending (target_id, number) AS (SELECT CAST($2 AS TEXT), CAST(0 AS BIGINT) UNION ALL \
             SELECT (SELECT d.target_id FROM webhook_deliveries d WHERE d.due_at IS NOT NULL AND d.target_id > p.target_id \
             ORDER BY d.target_id LIMIT 1), p.number + 1 FROM pending p WHERE p.target_id IS NOT NULL AND p.number < $3) SELECT ",
            $select,
            " FROM (SELECT n.target_id, n.number, (SELECT d.due_at FROM webhook_deliveries d WHERE d.target_id = n.target_id \
             AND d.due_at <= $1 AND d.test_requested_at IS NULL ORDER BY d.due_at LIMIT 1) AS oldest FROM pending n \
             WHERE n.number > 0 AND n.target_id IS NOT NULL LIMIT $3 + 0) p \
             LEFT JOIN webhook_targets t ON t.id = p.target_id AND p.oldest IS NOT NULL AND ",
            is_active!(),
            $conditions
        )
    };
}

/// The columns of a due target and of the owner of its service.
macro_rules! columns {
    () => {
        "t.id, t.service_id, t.url, t.updated_at, t.failing_since, \
         (SELECT s.owner_issuer FROM services s WHERE s.id = t.service_id) AS owner_issuer, \
         (SELECT s.owner_subject FROM services s WHERE s.id = t.service_id) AS owner_subject"
    };
}

statements! { STATEMENTS:
    LIST_TARGETS_WITH_DUE_DELIVERIES = pending_targets!(concat!("p.number, p.target_id, ", columns!()), "");
    /// The oldest due time of a page. A delivery to a target that was resumed counts as due since the resumption, or later.
    OLDEST_DUE_TIME = pending_targets!(
        "MAX(p.target_id) AS last, CAST(COUNT(*) AS BIGINT) AS total, MIN(CASE WHEN t.id IS NULL THEN NULL \
         WHEN p.oldest < t.active_since THEN t.active_since ELSE p.oldest END) AS oldest",
        " AND t.failing_since IS NULL"
    );
    LIST_TARGETS_WITH_DUE_TESTS = concat!(
        "SELECT ", columns!(), " FROM webhook_targets t WHERE t.deleted_at IS NULL AND t.id IN (SELECT target_id FROM \
         (SELECT d.target_id FROM webhook_deliveries d WHERE d.test_requested_at IS NOT NULL AND d.due_at <= $1 \
         ORDER BY d.due_at LIMIT $2 + 0) due)"
    );
}

/// The result of reading a page of targets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetPage<T> {
    pub content: T,
    /// The target after which the next page begins; `None` after the last page.
    pub next: Option<WebhookId>,
}

/// Reads a page of `limit` targets with pending deliveries after the target `after`. Returns only active targets with due
/// deliveries.
pub async fn list_with_due_deliveries(
    conn: &mut Conn,
    after: Option<WebhookId>,
    now: Timestamp,
    limit: i64,
) -> Result<TargetPage<Vec<DueTarget>>, StoreError> {
    let mut page = TargetPage { content: Vec::new(), next: None };
    let add_row = |row: &AnyRow| {
        if row::get::<i64>(row, "number")? == limit {
            page.next = Some(row::parse(row, "target_id")?);
        }
        if row::get::<Option<String>>(row, "id")?.is_some() {
            page.content.extend(due_target_from_row_or_skip(row));
        }
        Ok(())
    };
    let parameters = params![now, text_or_empty(after), limit];
    conn.list_rows::<_, ()>(LIST_TARGETS_WITH_DUE_DELIVERIES, parameters, add_row).await?;
    Ok(page)
}

/// Finds the earliest due time in a page of `limit` targets with pending deliveries after the target `after`. Only targets that are
/// active and not failing count.
pub async fn oldest_due_time(
    conn: &mut Conn,
    after: Option<WebhookId>,
    now: Timestamp,
    limit: i64,
) -> Result<TargetPage<Option<Timestamp>>, StoreError> {
    let page_from_row = |row: &AnyRow| {
        let is_full = row::total_count(row)? >= limit;
        let next = row::parse_optional(row, "last")?.filter(|_| is_full);
        Ok(TargetPage { content: row::optional_timestamp(row, "oldest")?, next })
    };
    conn.read_row(OLDEST_DUE_TIME, params![now, text_or_empty(after), limit], page_from_row).await
}

/// Lists up to `limit` targets with a due test delivery, active or not, the oldest tests first.
pub async fn list_with_due_tests(conn: &mut Conn, now: Timestamp, limit: i64) -> Result<Vec<DueTarget>, StoreError> {
    let targets_from_row = |row: &AnyRow| Ok(due_target_from_row_or_skip(row));
    let rows: Vec<_> = conn.list_rows(LIST_TARGETS_WITH_DUE_TESTS, params![now, limit], targets_from_row).await?;
    Ok(rows.into_iter().flatten().collect())
}

/// Converts a row to a target, or logs an error and returns `None`, so that an invalid row does not block the other targets.
fn due_target_from_row_or_skip(row: &AnyRow) -> Option<DueTarget> {
    due_target_from_row(row)
        .inspect_err(|error| tracing::error!(%error, "cannot read a webhook from the database; skipping it"))
        .ok()
}

fn due_target_from_row(row: &AnyRow) -> Result<DueTarget, StoreError> {
    let owner = match scope_from_row(row)? {
        ServiceOrDeployment::Deployment => TargetOwner::Deployment,
        ServiceOrDeployment::Service(_) => {
            TargetOwner::Person(owner_from_row(row)?.ok_or(StoreError::Corrupt("owner_issuer"))?)
        }
    };
    Ok(DueTarget {
        id: row::parse(row, "id")?,
        url: url_from_row(row)?,
        updated_at: row::timestamp(row, "updated_at")?,
        failing_since: row::optional_timestamp(row, "failing_since")?,
        owner,
    })
}
