//! Finds out since when rows of each kind can be deleted, and deletes them.

use super::{
    housekeeping::{CLOCK_SKEW_MARGIN, MAX_TRANSACTION_TIME},
    purge,
};
use crate::{
    domain::{
        agent::Agent,
        audit::Initiator,
        challenge, client_assertion,
        housekeeping::{ExpiredData, MAX_OVERDUE},
        quota::DELETED_AGENT_COUNTS_FOR,
    },
    operations::{Context, OperationError, agents::delete_locked_agents, context::id_lower_bound},
    store::{
        Conn, StoreError, WriteTransaction, agents, assignments, deleted_agents, deliveries, feed, idempotency,
        known_agents, outbox,
        purge::DeletedKind,
        service_transfers, sessions, sidecars, token_audiences, trust, unused_agents,
        webhook_cleanup::{self, TargetCleanup},
        webhook_targets,
    },
};
use countersign_identity::{EventId, FeedbackId, Timestamp, evaluation::LEEWAY};
use std::time::Duration;

/// How long we keep events, delivered or not. Events for paused webhooks expire, too.
const EVENT_RETENTION: Duration = days(30);

/// How long we keep each feedback in the history of an agent. Its effect on the trust score stays.
const FEEDBACK_RETENTION: Duration = days(365);

/// After this time, we delete an agent that was registered without the token of a human user and has never logged in.
const UNUSED_AGENT_RETENTION: Duration = days(7);

const fn days(number: u64) -> Duration {
    Duration::from_hours(24 * number)
}

/// How long we keep changes in the feed: as long as tokens may live.
fn token_retention(context: &Context) -> Duration {
    context.config.access_token_lifetime + CLOCK_SKEW_MARGIN
}

/// How long we keep sessions after they have expired or ended: as long as their tokens may live. A session also records that its
/// challenge or assertion was used, so we keep it until these have expired.
fn session_retention(context: &Context) -> Duration {
    retention_of_sessions(context.config.access_token_lifetime)
}

fn retention_of_sessions(access_token_lifetime: Duration) -> Duration {
    let signed_text_lifetime = challenge::LIFETIME.max(client_assertion::MAX_LIFETIME + LEEWAY);
    access_token_lifetime.max(signed_text_lifetime) + CLOCK_SKEW_MARGIN
}

/// How long we keep the row of a deleted agent: until housekeeping has deleted the sessions of the agent, and at least as long as
/// the agent counts for the quota of its owner.
fn agent_row_retention(context: &Context) -> Duration {
    let sessions = context.config.session_lifetime + session_retention(context) + MAX_OVERDUE;
    sessions.max(DELETED_AGENT_COUNTS_FOR)
}

/// Changes from before this time are older than every live token, so nobody needs them.
pub(super) fn token_horizon(context: &Context) -> Timestamp {
    context.now().saturating_sub(token_retention(context))
}

/// How long we keep rows of a kind after the time by which their index orders them.
struct Retention {
    time: Duration,
    /// The resolution of the times in the index. We delete a row one such step late, because the query excludes rows at its end.
    resolution: Duration,
}

impl Retention {
    fn of(data: ExpiredData, context: &Context) -> Self {
        let exact = |time| Self { time, resolution: Duration::ZERO };
        match data {
            ExpiredData::Changes => exact(token_retention(context)),
            ExpiredData::Sessions => Self { time: session_retention(context), resolution: Duration::from_micros(1) },
            ExpiredData::WebhookEvents | ExpiredData::WebhookOutbox => {
                Self { time: EVENT_RETENTION, resolution: ID_RESOLUTION }
            }
            ExpiredData::TrustFeedback => Self { time: FEEDBACK_RETENTION, resolution: ID_RESOLUTION },
            ExpiredData::UnusedAgents => exact(UNUSED_AGENT_RETENTION),
            ExpiredData::AgentDeletions => exact(DELETED_AGENT_COUNTS_FOR),
            ExpiredData::AgentRows => exact(agent_row_retention(context)),
            // The index of these rows already contains the time from which on we may delete them.
            ExpiredData::IdempotencyKeys
            | ExpiredData::KnownAgents
            | ExpiredData::TokenAudiences
            | ExpiredData::Sidecars
            | ExpiredData::ServiceTransfers
            | ExpiredData::Assignments
            | ExpiredData::WebhookDeliveries
            | ExpiredData::WebhookSecrets
            | ExpiredData::DeletedServices
            | ExpiredData::DeletedAgents
            | ExpiredData::DeletedRoles => exact(Duration::ZERO),
        }
    }
}

/// Since when the oldest row of a kind can be deleted; `None` if no row can be deleted now. Reads only indexes. May skip rows that
/// became deletable before `from`.
pub(super) async fn oldest_due(
    context: &Context,
    data: ExpiredData,
    from: Timestamp,
) -> Result<Option<Timestamp>, OperationError> {
    let Retention { time, resolution } = Retention::of(data, context);
    let first = from.saturating_sub(time + resolution);
    let mut read = context.store.read().await?;
    let conn = read.conn();
    let oldest = match data {
        ExpiredData::Changes => feed::oldest_change(conn, first, token_horizon(context)).await?,
        ExpiredData::Sessions => sessions::EXPIRED.oldest_deletable(conn, first).await?,
        ExpiredData::IdempotencyKeys => idempotency::EXPIRED.oldest_deletable(conn, first).await?,
        ExpiredData::KnownAgents => known_agents::FORGOTTEN.oldest_deletable(conn, first).await?,
        ExpiredData::TokenAudiences => token_audiences::EXPIRED.oldest_deletable(conn, first).await?,
        ExpiredData::Sidecars => sidecars::EXPIRED.oldest_deletable(conn, first).await?,
        ExpiredData::ServiceTransfers => service_transfers::oldest_expiry(conn).await?,
        ExpiredData::Assignments => assignments::EXPIRED.oldest_deletable(conn, first).await?,
        ExpiredData::WebhookDeliveries => {
            find_cleanup(context, conn).await?.map(|cleanup| delivery_due(context, cleanup))
        }
        ExpiredData::WebhookEvents => outbox::EVENTS.oldest(conn, first_event(first)).await?.map(time_of_event),
        ExpiredData::WebhookOutbox => outbox::WAITING_EVENTS.oldest(conn, first_event(first)).await?.map(time_of_event),
        ExpiredData::WebhookSecrets => webhook_cleanup::oldest_previous_secret(conn).await?,
        ExpiredData::TrustFeedback => {
            let oldest = trust::FEEDBACK.oldest(conn, first_feedback(first)).await?;
            oldest.map(|feedback| time_of_id(feedback.bits()))
        }
        ExpiredData::UnusedAgents => unused_agents::oldest_registration(conn, first).await?,
        ExpiredData::AgentDeletions => deleted_agents::DELETIONS.oldest_deletable(conn, first).await?,
        ExpiredData::AgentRows => deleted_agents::oldest_row(conn, first).await?,
        ExpiredData::DeletedServices => purge::oldest_due(conn, DeletedKind::Services).await?,
        ExpiredData::DeletedAgents => purge::oldest_due(conn, DeletedKind::Agents).await?,
        ExpiredData::DeletedRoles => purge::oldest_due(conn, DeletedKind::Roles).await?,
    };
    let due = oldest.map(|at| at.saturating_add(time + resolution));
    Ok(due.filter(|due| *due <= context.now()))
}

/// Deletes up to `limit` rows of a kind that became deletable at `from` or later. Returns their number.
pub(super) async fn delete(
    context: &Context,
    data: ExpiredData,
    tx: &mut WriteTransaction,
    from: Timestamp,
    limit: i64,
) -> Result<u64, OperationError> {
    let Retention { time, resolution } = Retention::of(data, context);
    let now = tx.now();
    let (first, end) = (from.saturating_sub(time + resolution), now.saturating_sub(time));
    let conn = tx.conn();
    let deleted = match data {
        ExpiredData::Changes => feed::delete_below_floor(conn, first, end, limit).await,
        ExpiredData::Sessions => sessions::EXPIRED.delete(conn, first, end, limit).await,
        ExpiredData::IdempotencyKeys => idempotency::EXPIRED.delete(conn, first, end, limit).await,
        ExpiredData::KnownAgents => known_agents::FORGOTTEN.delete(conn, first, end, limit).await,
        ExpiredData::TokenAudiences => token_audiences::EXPIRED.delete(conn, first, end, limit).await,
        ExpiredData::Sidecars => sidecars::EXPIRED.delete(conn, first, end, limit).await,
        ExpiredData::ServiceTransfers => service_transfers::delete_expired(conn, end, limit).await,
        ExpiredData::Assignments => assignments::EXPIRED.delete(conn, first, end, limit).await,
        ExpiredData::WebhookDeliveries => delete_deliveries(context, conn, limit).await,
        ExpiredData::WebhookEvents => outbox::EVENTS.delete(conn, first_event(first), first_event(end), limit).await,
        ExpiredData::WebhookOutbox => {
            outbox::WAITING_EVENTS.delete(conn, first_event(first), first_event(end), limit).await
        }
        ExpiredData::WebhookSecrets => webhook_cleanup::delete_expired_secrets(conn, end, limit).await,
        ExpiredData::TrustFeedback => {
            trust::FEEDBACK.delete(conn, first_feedback(first), first_feedback(end), limit).await
        }
        ExpiredData::UnusedAgents => return delete_unused_agents(tx, first, end, limit).await,
        ExpiredData::AgentDeletions => deleted_agents::DELETIONS.delete(conn, first, end, limit).await,
        ExpiredData::AgentRows => remove_agent_rows(conn, now, first, end, limit).await,
        ExpiredData::DeletedServices => return purge::purge(context, DeletedKind::Services, tx, limit).await,
        ExpiredData::DeletedAgents => return purge::purge(context, DeletedKind::Agents, tx, limit).await,
        ExpiredData::DeletedRoles => return purge::purge(context, DeletedKind::Roles, tx, limit).await,
    };
    Ok(deleted?)
}

/// The resolution of the time in an id.
const ID_RESOLUTION: Duration = Duration::from_millis(1);

/// The time with which an id begins.
fn time_of_id(id: u128) -> Timestamp {
    let millis = i64::try_from(id >> 80).unwrap_or(i64::MAX);
    Timestamp::from_micros(millis.saturating_mul(1000))
}

fn time_of_event(event: EventId) -> Timestamp {
    time_of_id(event.bits())
}

/// The lowest id of events from a time on.
fn first_event(from: Timestamp) -> EventId {
    EventId::from_bits(id_lower_bound(from))
}

/// The lowest id of feedback from a time on.
fn first_feedback(from: Timestamp) -> FeedbackId {
    FeedbackId::from_bits(id_lower_bound(from))
}

/// Events with a lower id are older than the retention time.
fn event_horizon(context: &Context) -> EventId {
    first_event(context.now().saturating_sub(EVENT_RETENTION))
}

async fn find_cleanup(context: &Context, conn: &mut Conn) -> Result<Option<TargetCleanup>, StoreError> {
    let deleted_before = context.now().saturating_sub(MAX_TRANSACTION_TIME);
    webhook_cleanup::find_cleanup(conn, event_horizon(context), deleted_before).await
}

/// Since when the oldest delivery of a target can be deleted, or the row of the target if it has no deliveries.
fn delivery_due(context: &Context, cleanup: TargetCleanup) -> Timestamp {
    match cleanup {
        TargetCleanup { deleted_at: Some(deleted_at), oldest: Some(_), .. } => deleted_at,
        TargetCleanup { deleted_at: Some(deleted_at), oldest: None, .. } => {
            deleted_at.saturating_add(MAX_TRANSACTION_TIME)
        }
        TargetCleanup { deleted_at: None, oldest: Some(event), .. } => {
            time_of_event(event).saturating_add(EVENT_RETENTION + ID_RESOLUTION)
        }
        // A target that is not deleted and has no deliveries needs no cleanup, so `find_cleanup` never returns it.
        TargetCleanup { deleted_at: None, oldest: None, .. } => context.now(),
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

/// To delete an agent, we change several rows, so we count an agent as ten rows. A transaction with 200 rows then has 20 agents.
const ROWS_PER_AGENT: i64 = 10;

const fn max_agents(limit: i64) -> i64 {
    if limit < ROWS_PER_AGENT { 1 } else { limit / ROWS_PER_AGENT }
}

/// Deletes agents that were registered between two times without the token of a human user, and have not logged in. Returns how many
/// agents were removed from the list of unused agents, even if some of them have logged in meanwhile.
async fn delete_unused_agents(
    tx: &mut WriteTransaction,
    from: Timestamp,
    until: Timestamp,
    limit: i64,
) -> Result<u64, OperationError> {
    let mut listed = unused_agents::list(tx.conn(), from, until, max_agents(limit)).await?;
    // Every transaction that locks several agents locks them in the order of their ids, so that no deadlock occurs.
    listed.sort_unstable();
    let mut unused = Vec::new();
    for agent in &listed {
        if agents::lock(tx.conn(), *agent).await? {
            unused.extend(agents::find(tx.conn(), *agent).await?.filter(is_unused));
        }
    }
    unused_agents::remove(tx.conn(), &listed).await?;
    delete_locked_agents(tx, &Initiator::SYSTEM, &unused).await?;
    Ok(listed.len() as u64)
}

/// Whether an agent is really unused: the list of unused agents may be outdated.
fn is_unused(agent: &Agent) -> bool {
    agent.registration.owner.is_none() && agent.last_seen_at.is_none()
}

/// Removes rows of agents that were deleted between two times, and the feedback about them. Returns the number of changed rows.
async fn remove_agent_rows(
    conn: &mut Conn,
    now: Timestamp,
    from: Timestamp,
    until: Timestamp,
    limit: i64,
) -> Result<u64, StoreError> {
    let mut changed = 0;
    for agent in deleted_agents::list_rows(conn, from, until, max_agents(limit)).await? {
        let remaining = limit.saturating_sub_unsigned(changed);
        if remaining <= 0 {
            break;
        }
        changed += deleted_agents::remove(conn, agent, now, remaining).await?;
    }
    Ok(changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_is_kept_for_its_tokens_and_for_what_began_it() {
        let shortest = retention_of_sessions(Duration::from_secs(1));
        assert!(shortest >= challenge::LIFETIME + CLOCK_SKEW_MARGIN);
        assert!(shortest >= client_assertion::MAX_LIFETIME + LEEWAY + CLOCK_SKEW_MARGIN);
        assert_eq!(retention_of_sessions(Duration::from_hours(1)), Duration::from_hours(1) + CLOCK_SKEW_MARGIN);
    }
}
