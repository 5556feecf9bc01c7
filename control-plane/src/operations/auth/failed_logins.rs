//! Emits `agent.authentication_failed`, and suppresses bursts.
//!
//! An attacker who tries many keys must not cause a database write for each. The first failures of a burst become one
//! event each. The others are counted, first in the memory of each process and then in the database, and become one
//! summary event.

use crate::{
    domain::webhook::{
        event::{AuthenticationFailed, Event, EventAudience, EventData, EventKind, LoginFailureReason},
        suppressed_burst::{SuppressedBurst, WINDOW},
    },
    operations::{Context, OperationError},
    store::{Write, outbox},
};
use countersign_identity::{AgentId, EventId, ServiceId, Timestamp};
use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// Time after the end of a burst in which all processes store their counts, before the summary is emitted.
const FLUSH_GRACE: Duration = Duration::from_secs(3);

/// Failures with the same agent and service belong to the same burst.
type BurstKey = (AgentId, Option<ServiceId>);

/// Counters of this process for bursts whose further failures are all suppressed.
#[derive(Default)]
pub struct SuppressedBursts(Mutex<HashMap<BurstKey, PendingCount>>);

/// Failures that are not in the database yet.
struct PendingCount {
    /// End of the burst.
    until: Timestamp,
    count: u64,
}

impl SuppressedBursts {
    /// Counts a failure if its burst is suppressed. Returns whether it is.
    fn count(&self, key: BurstKey, now: Timestamp) -> bool {
        let mut bursts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let pending = bursts.get_mut(&key).filter(|pending| now < pending.until);
        pending.map(|pending| pending.count += 1).is_some()
    }

    /// Suppresses further failures until the end of the burst.
    fn suppress(&self, key: BurstKey, until: Timestamp) {
        let mut bursts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        bursts.entry(key).or_insert(PendingCount { until, count: 0 }).until = until;
    }

    /// All counts above zero. Sorted, because all processes lock the rows of bursts in this order.
    fn pending(&self) -> Vec<(BurstKey, u64)> {
        let bursts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let pending = bursts.iter().filter(|(_, pending)| pending.count > 0);
        let mut pending: Vec<_> = pending.map(|(key, pending)| (*key, pending.count)).collect();
        pending.sort_unstable();
        pending
    }

    /// Subtracts counts that are in the database now, and drops bursts that have ended.
    fn subtract(&self, stored: &[(BurstKey, u64)], now: Timestamp) {
        let mut bursts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (key, count) in stored {
            if let Some(pending) = bursts.get_mut(key) {
                pending.count = pending.count.saturating_sub(*count);
            }
        }
        bursts.retain(|_, pending| pending.count > 0 || now < pending.until);
    }
}

/// The reason that the event reports; `None` if the error is not a failed login.
pub(in crate::operations) const fn login_failure_reason(denied: &OperationError) -> Option<LoginFailureReason> {
    match denied {
        OperationError::Refused(refusal) => Some(LoginFailureReason::Refused(refusal.reason)),
        OperationError::InvalidSignature => Some(LoginFailureReason::InvalidSignature),
        OperationError::NotFound(_)
        | OperationError::Conflict(_)
        | OperationError::IdempotencyKeyReused
        | OperationError::Invalid { .. }
        | OperationError::Store(_)
        | OperationError::Keyring(_) => None,
    }
}

/// Emits a failed login. An error is only logged: the caller refuses the login in any case.
pub(in crate::operations) async fn emit_failed_login(
    context: &Context,
    key: BurstKey,
    reason: LoginFailureReason,
    from: Option<IpAddr>,
) {
    if let Err(error) = emit(context, key, reason, from).await {
        tracing::warn!(%error, "cannot emit a webhook event for a failed login");
    }
}

async fn emit(
    context: &Context,
    key: BurstKey,
    reason: LoginFailureReason,
    from: Option<IpAddr>,
) -> Result<(), OperationError> {
    let (now, audience) = (context.now(), EventAudience::new(key.0, key.1));
    if context.suppressed_bursts.count(key, now) {
        return Ok(());
    }
    let mut read = context.store.read().await?;
    if !outbox::has_recipients(read.conn(), EventKind::AuthenticationFailed, audience, now).await? {
        return Ok(());
    }
    drop(read);
    let id = context.new_id(EventId::from_bits);
    let work = async |mut tx: Write| {
        let mut burst = lock_current_burst(&mut tx, context, key).await?;
        if burst.record_failure() {
            let data = event_data(key, reason, from, None);
            let at = tx.now();
            tx.emit(Event { id, at, data });
        }
        outbox::update_burst(tx.conn(), key.0, key.1, &burst).await?;
        Ok::<_, OperationError>(tx.commit(burst).await?)
    };
    let burst = context.store.write("emit_failed_login", work).await?;
    if burst.is_suppressing() {
        context.suppressed_bursts.suppress(key, burst.ends_at());
    }
    Ok(())
}

/// Stores the counts of this process, and emits a summary for each burst that has ended.
pub async fn flush_suppressed_bursts(context: &Context) -> Result<(), OperationError> {
    let pending = &context.suppressed_bursts.pending();
    if !pending.is_empty() {
        let work = async |mut tx: Write| {
            let now = tx.now();
            for (key, count) in pending {
                // The stored burst is used even if it has ended, because the counts belong to it.
                let mut burst = outbox::lock_burst(tx.conn(), key.0, key.1, now).await?;
                burst.suppressed += count;
                outbox::update_burst(tx.conn(), key.0, key.1, &burst).await?;
            }
            Ok::<_, OperationError>(tx.commit(()).await?)
        };
        context.store.write("count_failed_logins", work).await?;
    }
    context.suppressed_bursts.subtract(pending, context.now());
    let horizon = context.now().saturating_sub(WINDOW + FLUSH_GRACE);
    if !outbox::has_bursts_until(context.store.read().await?.conn(), horizon).await? {
        return Ok(());
    }
    let work = async |mut tx: Write| {
        for (agent, service, burst) in outbox::take_bursts(tx.conn(), horizon).await? {
            emit_summary(&mut tx, context, (agent, service), &burst);
        }
        Ok::<_, OperationError>(tx.commit(()).await?)
    };
    context.store.write("summarize_failed_logins", work).await
}

/// The burst that a failure now belongs to. If the stored one has ended, emits its summary and starts another.
async fn lock_current_burst(
    tx: &mut Write,
    context: &Context,
    key: BurstKey,
) -> Result<SuppressedBurst, OperationError> {
    let now = tx.now();
    let burst = outbox::lock_burst(tx.conn(), key.0, key.1, now).await?;
    if !burst.has_ended(now) {
        return Ok(burst);
    }
    emit_summary(tx, context, key, &burst);
    Ok(SuppressedBurst::new(now))
}

fn emit_summary(tx: &mut Write, context: &Context, key: BurstKey, burst: &SuppressedBurst) {
    if burst.suppressed > 0 {
        let data = event_data(key, LoginFailureReason::Suppressed, None, Some(burst.suppressed));
        tx.emit(Event { id: context.new_id(EventId::from_bits), at: burst.ends_at(), data });
    }
}

const fn event_data(
    (agent_id, service_id): BurstKey,
    reason: LoginFailureReason,
    ip_address: Option<IpAddr>,
    suppressed: Option<u64>,
) -> EventData {
    EventData::AuthenticationFailed(AuthenticationFailed { agent_id, service_id, reason, ip_address, suppressed })
}
