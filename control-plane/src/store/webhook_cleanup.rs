//! What housekeeping deletes of webhook targets: deliveries, rows of deleted targets, and previous secrets.

use super::{Conn, StoreError, query::params, row, statements::statements};
use countersign_identity::{EventId, Timestamp, WebhookId};
use sqlx::any::AnyRow;

statements! { STATEMENTS:
    /// Of the targets that were deleted and have deliveries, or were deleted at or before `$1`, the one that was deleted first.
    FIND_DELETED_TARGET = "SELECT t.id, t.deleted_at, t.oldest FROM (SELECT w.id, w.deleted_at, (SELECT MIN(d.event_id) \
         FROM webhook_deliveries d WHERE d.target_id = w.id) AS oldest FROM webhook_targets w WHERE w.deleted_at IS NOT NULL) t \
         WHERE t.oldest IS NOT NULL OR t.deleted_at <= $1 ORDER BY t.deleted_at, t.id LIMIT 1";
    /// The target of the oldest delivery, if its event has a lower id than `$1`.
    FIND_OLD_DELIVERY = "SELECT d.target_id AS id, (SELECT t.deleted_at FROM webhook_targets t WHERE t.id = d.target_id) \
         AS deleted_at, d.event_id AS oldest FROM webhook_deliveries d WHERE d.event_id < $1 \
         ORDER BY d.event_id LIMIT 1";
    DELETE_TARGET_ROW = "DELETE FROM webhook_targets WHERE id = $1 AND deleted_at <= $2";
    OLDEST_PREVIOUS_SECRET = "SELECT MIN(previous_until) AS oldest FROM webhook_targets WHERE previous_until IS NOT NULL";
    /// The UPDATE repeats the condition of its inner SELECT, because another transaction may rotate a secret between the SELECT and
    /// the UPDATE. Without the unary plus, SQLite would read all these rows again for the UPDATE.
    DELETE_EXPIRED_SECRETS = "UPDATE webhook_targets SET previous_secret = NULL, previous_until = NULL WHERE id IN \
         (SELECT id FROM webhook_targets WHERE previous_until <= $1 ORDER BY previous_until LIMIT $2 + 0) \
         AND +previous_until <= $1";
}

/// A target with deliveries to delete, or whose row can be deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TargetCleanup {
    pub target: WebhookId,
    /// When the target was deleted; `None` if it is not.
    pub deleted_at: Option<Timestamp>,
    /// The lowest id of an event with a delivery to the target; `None` if the target has no deliveries.
    pub oldest: Option<EventId>,
}

/// Finds a target with deliveries to delete. This is the target that was deleted first, or the target with the oldest delivery if
/// the event of this delivery has a lower id than `horizon`. Of the two, returns the one with the older delivery. A deleted target
/// without deliveries comes before both, if its row can be deleted, see [`delete_row`].
pub async fn find_cleanup(
    conn: &mut Conn,
    horizon: EventId,
    deleted_before: Timestamp,
) -> Result<Option<TargetCleanup>, StoreError> {
    let deleted = conn.find_row(FIND_DELETED_TARGET, params![deleted_before], cleanup_from_row).await?;
    let old = conn.find_row(FIND_OLD_DELIVERY, params![horizon], cleanup_from_row).await?;
    Ok(deleted.into_iter().chain(old).min_by_key(|cleanup| cleanup.oldest))
}

fn cleanup_from_row(row: &AnyRow) -> Result<TargetCleanup, StoreError> {
    Ok(TargetCleanup {
        target: row::parse(row, "id")?,
        deleted_at: row::optional_timestamp(row, "deleted_at")?,
        oldest: row::parse_optional(row, "oldest")?,
    })
}

/// Deletes the row of a target that was marked as deleted at or before `before`. No transaction from before this time may still
/// run, because it could insert deliveries to the target. Returns the number of rows.
pub async fn delete_row(conn: &mut Conn, target: WebhookId, before: Timestamp) -> Result<u64, StoreError> {
    conn.count_changes(DELETE_TARGET_ROW, params![target, before]).await
}

/// The earliest time at which a previous secret no longer signs; `None` if there are no previous secrets.
pub async fn oldest_previous_secret(conn: &mut Conn) -> Result<Option<Timestamp>, StoreError> {
    conn.find_oldest(OLDEST_PREVIOUS_SECRET, params![]).await
}

/// Deletes up to `limit` previous secrets that no longer sign. Returns their number.
pub async fn delete_expired_secrets(conn: &mut Conn, now: Timestamp, limit: i64) -> Result<u64, StoreError> {
    conn.count_changes(DELETE_EXPIRED_SECRETS, params![now, limit]).await
}
