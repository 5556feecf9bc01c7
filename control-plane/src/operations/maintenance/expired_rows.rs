//! Since when rows of each kind can be deleted, and their deletion.

use super::{
    expired_agents,
    housekeeping::{CLOCK_SKEW_MARGIN, MAX_TRANSACTION_TIME},
    purge,
};
use crate::{
    domain::{
        challenge,
        client_assertion::MAX_LIFETIME,
        housekeeping::{ExpiredData, MAX_OVERDUE},
        quota::DELETED_AGENT_COUNTS_FOR,
    },
    operations::{Context, OperationError, context::id_lower_bound},
    store::{
        Conn, StoreError, WriteTransaction, assignments, deleted_agents, deliveries, feed, idempotency, known_agents,
        outbox,
        purge::DeletedKind,
        service_transfers, sessions, sidecars, token_audiences, trust, unused_agents,
        webhook_cleanup::{self, TargetCleanup},
        webhook_targets,
    },
};
use countersign_identity::{EventId, FeedbackId, Timestamp, evaluation::LEEWAY};
use std::time::Duration;

/// Time for which events are kept, whether they are delivered or not. Events for paused webhooks expire as well.
const EVENT_RETENTION: Duration = days(30);

/// Time for which each feedback is in the history of an agent. The trust score keeps its effect.
const FEEDBACK_RETENTION: Duration = days(365);

/// Time after which an agent that was registered without the token of a human user is deleted if it has never logged in.
const UNUSED_AGENT_RETENTION: Duration = days(7);

const fn days(number: u64) -> Duration {
    Duration::from_hours(24 * number)
}

/// Time for which changes are kept after they were written: as long as tokens may live.
fn token_retention(context: &Context) -> Duration {
    context.config.access_token_lifetime + CLOCK_SKEW_MARGIN
}

/// Time for which sessions are kept after they have expired or ended: as long as their tokens may live. The session also records
/// that its challenge or assertion was used, so it is kept until these have expired.
fn session_retention(context: &Context) -> Duration {
    retention_of_sessions(context.config.access_token_lifetime)
}

fn retention_of_sessions(access_token_lifetime: Duration) -> Duration {
    let proof_lifetime = challenge::LIFETIME.max(MAX_LIFETIME + LEEWAY);
    access_token_lifetime.max(proof_lifetime) + CLOCK_SKEW_MARGIN
}

/// Time for which the row of a deleted agent is kept, so that housekeeping has deleted the sessions of the agent before. The count
/// for the quota is kept for as long at most, so the number of rows has a bound.
fn agent_row_retention(context: &Context) -> Duration {
    let sessions = context.config.session_lifetime + session_retention(context) + MAX_OVERDUE;
    sessions.max(DELETED_AGENT_COUNTS_FOR)
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
            let oldest = feed::oldest_change(conn, from.saturating_sub(retention), token_horizon(context)).await?;
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
        ExpiredData::Sidecars => sidecars::oldest_expiry(conn, from).await?,
        ExpiredData::ServiceTransfers => service_transfers::oldest_expiry(conn).await?,
        ExpiredData::Assignments => assignments::oldest_deletable_expiry(conn, from).await?,
        ExpiredData::WebhookDeliveries => {
            find_cleanup(context, conn).await?.map(|cleanup| delivery_due(context, cleanup))
        }
        ExpiredData::WebhookEvents => outbox::oldest_event(conn, first_event(from)).await?.map(event_due),
        ExpiredData::WebhookOutbox => outbox::oldest_waiting(conn, first_event(from)).await?.map(event_due),
        ExpiredData::WebhookSecrets => webhook_cleanup::oldest_previous_secret(conn).await?,
        ExpiredData::TrustFeedback => {
            let retention = FEEDBACK_RETENTION;
            let first = FeedbackId::from_bits(first_id(from, retention));
            trust::oldest_feedback(conn, first).await?.map(|feedback| id_due(feedback.bits(), retention))
        }
        ExpiredData::UnusedAgents => {
            let retention = UNUSED_AGENT_RETENTION;
            let oldest = unused_agents::oldest_registration(conn, from.saturating_sub(retention)).await?;
            oldest.map(|at| at.saturating_add(retention))
        }
        ExpiredData::AgentDeletions => {
            let oldest = deleted_agents::oldest_deletion(conn, from.saturating_sub(DELETED_AGENT_COUNTS_FOR)).await?;
            oldest.map(|at| at.saturating_add(DELETED_AGENT_COUNTS_FOR))
        }
        ExpiredData::AgentRows => {
            let retention = agent_row_retention(context);
            let oldest = deleted_agents::oldest_row(conn, from.saturating_sub(retention)).await?;
            oldest.map(|at| at.saturating_add(retention))
        }
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
    from: Timestamp,
    limit: i64,
) -> Result<u64, OperationError> {
    let (now, horizon, retention) = (tx.now(), token_horizon(context), token_retention(context));
    let conn = tx.conn();
    let deleted = match data {
        ExpiredData::Changes => feed::delete_below_floor(conn, from.saturating_sub(retention), horizon, limit).await,
        ExpiredData::Sessions => {
            let retention = session_retention(context);
            let expired_from = from.saturating_sub(retention + AFTER_EXPIRY);
            sessions::delete_expired(conn, expired_from, now.saturating_sub(retention), limit).await
        }
        ExpiredData::IdempotencyKeys => idempotency::delete_expired(conn, from, now, limit).await,
        ExpiredData::KnownAgents => known_agents::delete_forgotten(conn, from, now, limit).await,
        ExpiredData::TokenAudiences => token_audiences::delete_expired(conn, from, now, limit).await,
        ExpiredData::Sidecars => sidecars::delete_expired(conn, from, now, limit).await,
        ExpiredData::ServiceTransfers => service_transfers::delete_expired(conn, now, limit).await,
        ExpiredData::Assignments => assignments::delete_expired(conn, from, now, limit).await,
        ExpiredData::WebhookDeliveries => delete_deliveries(context, conn, limit).await,
        ExpiredData::WebhookEvents => {
            outbox::delete_events_before(conn, first_event(from), event_horizon(context), limit).await
        }
        ExpiredData::WebhookOutbox => {
            outbox::delete_waiting_before(conn, first_event(from), event_horizon(context), limit).await
        }
        ExpiredData::WebhookSecrets => webhook_cleanup::delete_expired_secrets(conn, now, limit).await,
        ExpiredData::TrustFeedback => {
            let first = FeedbackId::from_bits(first_id(from, FEEDBACK_RETENTION));
            let horizon = FeedbackId::from_bits(id_lower_bound(now.saturating_sub(FEEDBACK_RETENTION)));
            trust::delete_feedback_before(conn, first, horizon, limit).await
        }
        ExpiredData::UnusedAgents => {
            let [from, until] = [from, now].map(|end| end.saturating_sub(UNUSED_AGENT_RETENTION));
            return expired_agents::delete_unused(tx, from, until, limit).await;
        }
        ExpiredData::AgentDeletions => {
            let [from, until] = [from, now].map(|end| end.saturating_sub(DELETED_AGENT_COUNTS_FOR));
            deleted_agents::delete_deletions(conn, from, until, limit).await
        }
        ExpiredData::AgentRows => {
            let retention = agent_row_retention(context);
            let [from, until] = [from, now].map(|end| end.saturating_sub(retention));
            return expired_agents::remove_rows(tx, from, until, limit).await;
        }
        ExpiredData::DeletedServices => return purge::purge(context, DeletedKind::Services, tx, limit).await,
        ExpiredData::DeletedAgents => return purge::purge(context, DeletedKind::Agents, tx, limit).await,
        ExpiredData::DeletedRoles => return purge::purge(context, DeletedKind::Roles, tx, limit).await,
    };
    Ok(deleted?)
}

/// The resolution of the time in an id.
const ID_RESOLUTION: Duration = Duration::from_millis(1);

/// The lowest id of rows that can be deleted since `from` or later.
fn first_id(from: Timestamp, retention: Duration) -> u128 {
    id_lower_bound(from.saturating_sub(retention + ID_RESOLUTION))
}

/// Since when a row can be deleted. Its id begins with its time in milliseconds; it can be deleted when the whole millisecond is
/// before the horizon.
fn id_due(id: u128, retention: Duration) -> Timestamp {
    let millis = i64::try_from(id >> 80).unwrap_or(i64::MAX);
    let created_at = Timestamp::from_micros(millis.saturating_mul(1000));
    created_at.saturating_add(retention + ID_RESOLUTION)
}

/// Events with a lower id are older than the retention time.
fn event_horizon(context: &Context) -> EventId {
    EventId::from_bits(id_lower_bound(context.now().saturating_sub(EVENT_RETENTION)))
}

/// The lowest id of events that can be deleted since `from` or later.
fn first_event(from: Timestamp) -> EventId {
    EventId::from_bits(first_id(from, EVENT_RETENTION))
}

/// Since when an event can be deleted.
fn event_due(event: EventId) -> Timestamp {
    id_due(event.bits(), EVENT_RETENTION)
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
        TargetCleanup { deleted_at: None, oldest, .. } => oldest.map_or_else(|| context.now(), event_due),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_is_kept_for_its_tokens_and_for_what_began_it() {
        let proof = retention_of_sessions(Duration::from_secs(1));
        assert!(proof >= challenge::LIFETIME + CLOCK_SKEW_MARGIN);
        assert!(proof >= MAX_LIFETIME + LEEWAY + CLOCK_SKEW_MARGIN);
        assert_eq!(retention_of_sessions(Duration::from_hours(1)), Duration::from_hours(1) + CLOCK_SKEW_MARGIN);
    }
}
