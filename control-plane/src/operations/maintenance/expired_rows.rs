//! Since when rows of each kind can be deleted, and their deletion.

use super::{
    housekeeping::{CLOCK_SKEW_MARGIN, MAX_TRANSACTION_TIME},
    purge,
};
use crate::{
    domain::housekeeping::ExpiredData,
    operations::{Context, OperationError, context::id_lower_bound},
    store::{
        Conn, StoreError, WriteTransaction, assignments, deliveries, feed, idempotency, known_agents, outbox,
        purge::DeletedKind,
        service_transfers, sessions, token_audiences,
        webhook_cleanup::{self, TargetCleanup},
        webhook_targets,
    },
};
use countersign_identity::{EventId, Timestamp};
use std::time::Duration;

/// Time for which changes are kept after they were written: as long as tokens may live.
fn token_retention(context: &Context) -> Duration {
    context.config.access_token_lifetime + CLOCK_SKEW_MARGIN
}

/// Time for which sessions are kept after they have expired or ended: as long as their tokens may live. The session also records
/// that its challenge was used, so it is kept until the challenge has expired.
fn session_retention(context: &Context) -> Duration {
    context.config.access_token_lifetime.max(context.config.challenge_lifetime) + CLOCK_SKEW_MARGIN
}

/// The time until which written changes are no longer needed.
pub(super) fn token_horizon(context: &Context) -> Timestamp {
    context.now().saturating_sub(token_retention(context))
}

/// Added to the expiry of a session: the session is deleted if it expired before the horizon, not at the horizon.
const AFTER_EXPIRY: Duration = Duration::from_micros(1);

/// Since when the oldest row of a kind can be deleted; `None` if no row can be deleted now. Reads entries of indexes only. Rows
/// that could be deleted before `from` may be skipped.
pub(super) async fn oldest_due(
    context: &Context,
    data: ExpiredData,
    from: Timestamp,
) -> Result<Option<Timestamp>, OperationError> {
    let mut read = context.store.read().await?;
    let conn = read.conn();
    let retention = token_retention(context);
    let due = match data {
        ExpiredData::Changes => {
            let range = (from.saturating_sub(retention), token_horizon(context));
            let oldest = feed::oldest_change(conn, range).await?;
            oldest.map(|at| at.saturating_add(retention))
        }
        ExpiredData::Sessions => {
            let after = session_retention(context) + AFTER_EXPIRY;
            let oldest = sessions::oldest_expiry(conn, from.saturating_sub(after)).await?;
            oldest.map(|at| at.saturating_add(after))
        }
        ExpiredData::IdempotencyKeys => idempotency::oldest_expiry(conn, from).await?,
        ExpiredData::KnownAgents => known_agents::oldest_forgetting(conn, from).await?,
        ExpiredData::TokenAudiences => token_audiences::oldest_expiry(conn, from).await?,
        ExpiredData::ServiceTransfers => service_transfers::oldest_expiry(conn).await?,
        ExpiredData::Assignments => assignments::oldest_deletable_expiry(conn, from).await?,
        ExpiredData::WebhookDeliveries => {
            find_cleanup(context, conn).await?.map(|cleanup| delivery_due(context, cleanup))
        }
        ExpiredData::WebhookEvents => {
            outbox::oldest_event(conn, first_event(context, from)).await?.map(|event| event_due(context, event))
        }
        ExpiredData::WebhookSecrets => webhook_cleanup::oldest_previous_secret(conn).await?,
        ExpiredData::DeletedServices => purge::oldest_due(conn, DeletedKind::Services).await?,
        ExpiredData::DeletedAgents => purge::oldest_due(conn, DeletedKind::Agents).await?,
        ExpiredData::DeletedRoles => purge::oldest_due(conn, DeletedKind::Roles).await?,
    };
    Ok(due.filter(|due| *due <= context.now()))
}

/// Deletes up to `limit` rows of a kind that can be deleted since `from` or later. Returns their number.
pub(super) async fn delete(
    context: &Context,
    data: ExpiredData,
    tx: &mut WriteTransaction,
    (from, limit): (Timestamp, i64),
) -> Result<u64, OperationError> {
    let (now, horizon, retention) = (tx.now(), token_horizon(context), token_retention(context));
    let conn = tx.conn();
    let deleted = match data {
        ExpiredData::Changes => feed::delete_below_floor(conn, (from.saturating_sub(retention), horizon), limit).await,
        ExpiredData::Sessions => {
            let retention = session_retention(context);
            let expired_from = from.saturating_sub(retention + AFTER_EXPIRY);
            sessions::delete_expired(conn, (expired_from, now.saturating_sub(retention)), limit).await
        }
        ExpiredData::IdempotencyKeys => idempotency::delete_expired(conn, (from, now), limit).await,
        ExpiredData::KnownAgents => known_agents::delete_forgotten(conn, (from, now), limit).await,
        ExpiredData::TokenAudiences => token_audiences::delete_expired(conn, (from, now), limit).await,
        ExpiredData::ServiceTransfers => service_transfers::delete_expired(conn, now, limit).await,
        ExpiredData::Assignments => assignments::delete_expired(conn, (from, now), limit).await,
        ExpiredData::WebhookDeliveries => delete_deliveries(context, conn, limit).await,
        ExpiredData::WebhookEvents => {
            let range = (first_event(context, from), event_horizon(context));
            outbox::delete_events_before(conn, range, limit).await
        }
        ExpiredData::WebhookSecrets => webhook_cleanup::delete_expired_secrets(conn, now, limit).await,
        ExpiredData::DeletedServices => return purge::purge(context, DeletedKind::Services, tx, limit).await,
        ExpiredData::DeletedAgents => return purge::purge(context, DeletedKind::Agents, tx, limit).await,
        ExpiredData::DeletedRoles => return purge::purge(context, DeletedKind::Roles, tx, limit).await,
    };
    Ok(deleted?)
}

/// The resolution of the time in the id of an event.
const EVENT_ID_RESOLUTION: Duration = Duration::from_millis(1);

/// Events with a lower id are older than the retention time.
fn event_horizon(context: &Context) -> EventId {
    EventId::from_bits(id_lower_bound(context.now().saturating_sub(context.config.event_retention)))
}

/// The lowest id of events that can be deleted since `from` or later.
fn first_event(context: &Context, from: Timestamp) -> EventId {
    let after = context.config.event_retention + EVENT_ID_RESOLUTION;
    EventId::from_bits(id_lower_bound(from.saturating_sub(after)))
}

/// Since when an event can be deleted. The id of an event begins with its time in milliseconds; it can be deleted when the whole
/// millisecond is before the horizon.
fn event_due(context: &Context, event: EventId) -> Timestamp {
    let millis = i64::try_from(event.bits() >> 80).unwrap_or(i64::MAX);
    let created_at = Timestamp::from_micros(millis.saturating_mul(1000));
    created_at.saturating_add(context.config.event_retention + EVENT_ID_RESOLUTION)
}

async fn find_cleanup(context: &Context, conn: &mut Conn) -> Result<Option<TargetCleanup>, StoreError> {
    let deleted_before = context.now().saturating_sub(MAX_TRANSACTION_TIME);
    webhook_cleanup::find_cleanup(conn, event_horizon(context), deleted_before).await
}

/// Since when the oldest delivery of a target, or its row, can be deleted.
fn delivery_due(context: &Context, cleanup: TargetCleanup) -> Timestamp {
    match cleanup {
        TargetCleanup { deleted_at: Some(deleted_at), oldest: Some(_), .. } => deleted_at,
        TargetCleanup { deleted_at: Some(deleted_at), oldest: None, .. } => {
            deleted_at.saturating_add(MAX_TRANSACTION_TIME)
        }
        TargetCleanup { deleted_at: None, oldest, .. } => {
            oldest.map_or_else(|| context.now(), |event| event_due(context, event))
        }
    }
}

/// Deletes deliveries to one target, or the row of a deleted target without deliveries.
async fn delete_deliveries(context: &Context, conn: &mut Conn, limit: i64) -> Result<u64, StoreError> {
    let Some(TargetCleanup { target, deleted_at, .. }) = find_cleanup(context, conn).await? else { return Ok(0) };
    webhook_targets::lock_any_scope(conn, target).await?;
    let before = deleted_at.is_none().then(|| event_horizon(context));
    let deleted = deliveries::delete_before(conn, target, before, limit).await?;
    if deleted > 0 || deleted_at.is_none() {
        return Ok(deleted);
    }
    webhook_cleanup::delete_row(conn, target, context.now().saturating_sub(MAX_TRANSACTION_TIME)).await
}
