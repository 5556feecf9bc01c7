//! Emits the event `agent.authentication_failed` for failed logins, and suppresses bursts of the event.
//!
//! A burst is all failed logins of one agent at one service within one minute. An attacker must not cause a database write with each
//! failed login. So only the first failures of a burst become one event each. We count the others, first in the memory of each process
//! and then in the database. After the end of the burst, one summary event tells their number.

use crate::{
    domain::{
        service::ServiceOrDeployment,
        webhook::{
            event::{AuthenticationFailedEvent, Event, EventData, EventKind, LoginFailureReason},
            suppressed_burst::{BURST_WINDOW, SuppressedBurst},
        },
    },
    operations::{Context, OperationError, batches::run_batch, memory::BurstKey},
    store::{Conn, WriteTransaction, known_agents, outbox},
};
use countersign_identity::{EventId, Timestamp};
use std::{net::IpAddr, sync::Arc, time::Duration};
use tracing::Instrument as _;

/// How long after the end of a burst we emit its summary, so that all processes can store their counts.
const FLUSH_GRACE: Duration = Duration::from_secs(3);

/// Maximum number of bursts whose counts one transaction stores.
const COUNTS_PER_TRANSACTION: usize = 200;

/// Returns the reason for the event `agent.authentication_failed`; `None` if the error is not a failed login.
pub(in crate::operations) const fn login_failure_reason(error: &OperationError) -> Option<LoginFailureReason> {
    match error {
        OperationError::Refused(refusal) => Some(LoginFailureReason::Refused(refusal.reason)),
        OperationError::InvalidSignature => Some(LoginFailureReason::InvalidSignature),
        OperationError::InvalidAssertion(error) => Some(LoginFailureReason::Refused(error.reason)),
        OperationError::NotFound(_)
        | OperationError::Conflict(_)
        | OperationError::QuotaExceeded(_)
        | OperationError::AgentLeft
        | OperationError::IdempotencyKeyReused
        | OperationError::Invalid { .. }
        | OperationError::Busy(_)
        | OperationError::Store(_)
        | OperationError::Keyring(_) => None,
    }
}

/// Counts a failed login, and emits an event for it if it is one of the first of its burst. Errors are only logged, because the
/// caller refuses the login in any case.
pub(in crate::operations) async fn emit_failed_login(
    context: &Arc<Context>,
    key: BurstKey,
    reason: LoginFailureReason,
    client_address: Option<IpAddr>,
) {
    if context.suppressed_bursts.count_if_suppressed(key, context.now()) {
        return;
    }
    let context = Arc::clone(context);
    let emission = async move {
        if let Err(error) = emit_or_suppress(&context, key, reason, client_address).await {
            tracing::warn!(%error, "cannot emit a webhook event for a failed login");
        }
    };
    // The task goes on if the client disconnects. Otherwise, a client that always disconnects during the commit would never reach the
    // maximum number of events, and each of its failed logins would cost a transaction.
    let _panicked = tokio::spawn(emission.in_current_span()).await;
}

/// Emits an event, or counts the failure if its burst has had the maximum number of events. From then on, this process counts further
/// failures of the burst in memory.
async fn emit_or_suppress(
    context: &Context,
    key: BurstKey,
    reason: LoginFailureReason,
    client_address: Option<IpAddr>,
) -> Result<(), OperationError> {
    let now = context.now();
    let mut read = context.store.read().await?;
    let key = burst_key_of_known_service(read.conn(), key, now).await?;
    let scope = ServiceOrDeployment::of(key.service);
    if context.suppressed_bursts.count_if_suppressed(key, now)
        || !outbox::has_recipients(read.conn(), EventKind::AuthenticationFailed, scope).await?
    {
        return Ok(());
    }
    drop(read);
    let id = context.new_id(EventId::from_bits);
    let work = async |mut tx: WriteTransaction| {
        let mut burst = lock_current_burst(&mut tx, context, key).await?;
        let emits_event = burst.record_failure();
        if emits_event {
            let data = event_data(key, reason, client_address, None);
            let at = tx.now();
            tx.emit(Event { id, at, data });
        }
        outbox::update_burst(tx.conn(), key.agent, key.service, &burst).await?;
        Ok::<_, OperationError>(tx.commit(burst).await?)
    };
    let burst = context.store.write("emit_failed_login", work).await?;
    if burst.is_suppressing() {
        context.suppressed_bursts.suppress(key, burst.ends_at());
    }
    Ok(())
}

/// Removes the service from the key if the agent is not known to the service. Otherwise, a client could fill the webhooks of a service
/// that its agent has nothing to do with, or create bursts with the ids of services that do not exist.
async fn burst_key_of_known_service(
    conn: &mut Conn,
    key: BurstKey,
    now: Timestamp,
) -> Result<BurstKey, OperationError> {
    let Some(service) = key.service else { return Ok(key) };
    let is_known = known_agents::is_known(conn, key.agent, service, now).await?;
    Ok(BurstKey { service: is_known.then_some(service), ..key })
}

/// Stores the counts of this process, and emits a summary for each burst that has ended.
pub async fn flush_suppressed_bursts(context: &Context) -> Result<(), OperationError> {
    store_counts(context).await?;
    emit_summaries(context).await
}

async fn store_counts(context: &Context) -> Result<(), OperationError> {
    for counts in context.suppressed_bursts.pending_counts().chunks(COUNTS_PER_TRANSACTION) {
        let work = async |mut tx: WriteTransaction| {
            let now = tx.now();
            for (key, count) in counts {
                // The counts in memory belong to the burst in the database, even if this burst has ended.
                let mut burst = outbox::lock_burst(tx.conn(), key.agent, key.service, now).await?;
                burst.suppressed += count;
                outbox::update_burst(tx.conn(), key.agent, key.service, &burst).await?;
            }
            Ok::<_, OperationError>(tx.commit(()).await?)
        };
        context.store.write_alone("count_failed_logins", work).await?;
        // The counts in memory may have grown meanwhile, so we subtract what is stored instead of resetting them.
        context.suppressed_bursts.subtract(counts);
    }
    context.suppressed_bursts.remove_ended(context.now());
    Ok(())
}

async fn emit_summaries(context: &Context) -> Result<(), OperationError> {
    let horizon = context.now().saturating_sub(BURST_WINDOW + FLUSH_GRACE);
    while outbox::has_bursts_until(context.store.read().await?.conn(), horizon).await? {
        let batch = async |mut tx: WriteTransaction, limit| {
            let bursts = outbox::take_bursts(tx.conn(), horizon, limit).await?;
            for (agent, service, burst) in &bursts {
                emit_summary(&mut tx, context, BurstKey { agent: *agent, service: *service }, burst);
            }
            Ok((tx, bursts.len() as u64))
        };
        if run_batch(context, "summarize_failed_logins", batch).await? == 0 {
            // Another replica emits the summaries.
            break;
        }
    }
    Ok(())
}

/// Locks and returns the current burst. If the stored burst has ended, emits its summary and starts a new burst.
async fn lock_current_burst(
    tx: &mut WriteTransaction,
    context: &Context,
    key: BurstKey,
) -> Result<SuppressedBurst, OperationError> {
    let now = tx.now();
    let burst = outbox::lock_burst(tx.conn(), key.agent, key.service, now).await?;
    if !burst.has_ended(now) {
        return Ok(burst);
    }
    emit_summary(tx, context, key, &burst);
    Ok(SuppressedBurst::new(now))
}

fn emit_summary(tx: &mut WriteTransaction, context: &Context, key: BurstKey, burst: &SuppressedBurst) {
    if burst.suppressed > 0 {
        let data = event_data(key, LoginFailureReason::Suppressed, None, Some(burst.suppressed));
        tx.emit(Event { id: context.new_id(EventId::from_bits), at: burst.ends_at(), data });
    }
}

const fn event_data(
    BurstKey { agent: agent_id, service: service_id }: BurstKey,
    reason: LoginFailureReason,
    ip_address: Option<IpAddr>,
    suppressed: Option<u64>,
) -> EventData {
    EventData::AuthenticationFailed(AuthenticationFailedEvent { agent_id, service_id, reason, ip_address, suppressed })
}
