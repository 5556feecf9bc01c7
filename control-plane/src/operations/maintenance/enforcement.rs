//! Records in the audit log when audited changes are in force at all sidecars: each one decides with them, or refuses all requests.
//!
//! - One entry confirms many changes of a chain. It follows their entries in the same chain, and names their positions.
//! - For the chain of a service, we wait for the sidecars of this service, and for the chain of the deployment, for all sidecars.
//! - While we wait for sidecars, later changes of the chain wait for the next entry. A silent sidecar has no stream, and delays each
//!   entry only until it refuses all requests by itself.
//! - Without sidecars, we write no entry.

use crate::{
    domain::{
        audit::{AuditAction, Initiator, NewAuditEntry},
        service::ServiceOrDeployment,
        sidecar::Enforcement,
    },
    operations::{Context, OperationError, memory::ConfirmationTurn},
    store::{
        StoreError, WriteTransaction, feed,
        unconfirmed_changes::{self, UnconfirmedChanges},
    },
};
use countersign_identity::{Revision, Timestamp};
use std::time::Duration;
use tokio::time::sleep;

/// How many chains we look at in one run.
const MAX_CHAINS: i64 = 200;

/// After each run, the job pauses twenty times as long as the run took, because it reads the sidecars again and again.
const PAUSE_FACTOR: u32 = 20;

/// The longest pause, even after a run in which the database did not respond.
const MAX_PAUSE: Duration = Duration::from_mins(2);

const JOB: &str = "confirm_changes";

/// We count no more silent sidecars than this.
const MAX_SILENT: i64 = 10_000;

/// If a change is not in force for this long, we log it, and again after each further interval.
const LOG_INTERVAL: Duration = Duration::from_mins(1);

/// The oldest change that is not in force everywhere, and the sidecars for which it may wait.
#[derive(Debug, Clone, Copy)]
pub struct EnforcementStatus {
    /// When the oldest change was made that is not in force at all sidecars.
    pub oldest_change: Option<Timestamp>,
    /// The number of sidecars without a stream that may still decide, at most [`MAX_SILENT`].
    pub silent_sidecars: i64,
}

/// Looks at the next chains with changes that are not confirmed. Returns the status when it has reached the last chain, and `None`
/// before.
pub async fn confirm_changes(context: &Context) -> Result<Option<EnforcementStatus>, OperationError> {
    let began_at = context.since_boot();
    let result = confirm_next_changes(context).await;
    sleep((context.since_boot().saturating_sub(began_at) * PAUSE_FACTOR).min(MAX_PAUSE)).await;
    result
}

async fn confirm_next_changes(context: &Context) -> Result<Option<EnforcementStatus>, OperationError> {
    let mut turn = context.confirmation_turn.lock().await;
    let (chains, newest) = {
        let mut read = context.store.read().await?;
        // We read the revision after the rows, so it covers all their changes.
        let chains = unconfirmed_changes::list(read.conn(), &turn.after, MAX_CHAINS).await?;
        (chains, feed::position(read.conn()).await?.revision)
    };
    let may_have_more = i64::try_from(chains.len()).is_ok_and(|count| count == MAX_CHAINS);
    let last = chains.last().filter(|_| may_have_more).map(|changes| changes.chain.clone());
    let mut result = Ok(());
    for changes in chains {
        // If one chain fails, the others must still get their entries.
        let is_confirmed = confirm(context, &changes, newest).await.unwrap_or_else(|error| {
            result = Err(error);
            false
        });
        if !is_confirmed {
            turn.oldest = turn.oldest.take().into_iter().chain([(changes.first_changed_at, changes.chain)]).min();
        }
    }
    if let Some(last) = last {
        turn.after = last;
        return result.map(|()| None);
    }
    log_oldest(context, &mut turn);
    let ConfirmationTurn { after: _, oldest, logged_at } = std::mem::take(&mut *turn);
    turn.logged_at = logged_at;
    result?;
    let silent_sidecars = context.sidecars.count_silent(MAX_SILENT).await?;
    Ok(Some(EnforcementStatus { oldest_change: oldest.map(|(time, _)| time), silent_sidecars }))
}

/// Logs the chain of the oldest change that is not in force, because the metric does not tell the service.
fn log_oldest(context: &Context, turn: &mut ConfirmationTurn) {
    let (now, since_boot) = (context.now(), context.since_boot());
    let is_due = turn.logged_at.is_none_or(|at| since_boot.saturating_sub(at) >= LOG_INTERVAL);
    let oldest = turn.oldest.as_ref().filter(|(time, _)| is_due && now.duration_since(*time) >= LOG_INTERVAL);
    if let Some((changed_at, chain)) = oldest {
        let seconds = now.duration_since(*changed_at).as_secs();
        tracing::warn!(chain, seconds, "a change is not in force at all sidecars");
        turn.logged_at = Some(since_boot);
    }
}

/// Records that the changes are in force if they are in force at all sidecars. Otherwise, returns false.
async fn confirm(context: &Context, changes: &UnconfirmedChanges, newest: Revision) -> Result<bool, OperationError> {
    // Every chain has a scope, so this skips nothing.
    let Some(scope) = ServiceOrDeployment::of_audit_chain(&changes.chain) else { return Ok(true) };
    let revision = changes.awaited.unwrap_or(newest);
    let receipt = context.sidecars.enforcement(None, scope.service(), revision).await?;
    if !receipt.is_complete() {
        if changes.awaited.is_none() {
            // From now on, later changes wait for the next entry.
            let work = async |mut tx: WriteTransaction| {
                if context.store.try_begin_job(&mut tx, JOB).await? {
                    unconfirmed_changes::await_newest_revision(tx.conn(), &changes.chain).await?;
                }
                tx.commit(()).await
            };
            context.store.write::<_, StoreError, _, _>("await_changes", work).await?;
        }
        return Ok(false);
    }
    let entry = (receipt.sidecars + receipt.expired > 0).then(|| entry(scope, changes, &receipt));
    let work = async |mut tx: WriteTransaction| {
        // Another control plane may have confirmed the changes.
        let has_job = context.store.try_begin_job(&mut tx, JOB).await?;
        if !has_job || !unconfirmed_changes::is_first(tx.conn(), changes).await? {
            return tx.commit(()).await;
        }
        if let Some(entry) = &entry {
            match tx.audit(&Initiator::SYSTEM, entry).await {
                // The service was deleted, and its chain accepts no entry.
                Err(StoreError::AuditChainSealed) | Ok(()) => {}
                Err(error) => return Err(error),
            }
        }
        unconfirmed_changes::remove(tx.conn(), changes).await?;
        tx.commit(()).await
    };
    context.store.write::<_, StoreError, _, _>(JOB, work).await?;
    Ok(true)
}

fn entry(scope: ServiceOrDeployment, changes: &UnconfirmedChanges, receipt: &Enforcement) -> NewAuditEntry {
    let UnconfirmedChanges { chain: _, first_sequence, last_sequence, first_changed_at: _, changed_at, awaited: _ } =
        changes;
    let elapsed = receipt.elapsed_since(*changed_at).map(|elapsed| elapsed.as_micros().div_ceil(1000));
    let entry = NewAuditEntry::new(scope, AuditAction::ChangesEnforced)
        .with_detail("firstSequence", *first_sequence)
        .with_detail("lastSequence", *last_sequence)
        .with_detail("sidecars", receipt.sidecars)
        .with_detail("expiredSidecars", receipt.expired);
    match elapsed.and_then(|elapsed| u64::try_from(elapsed).ok()) {
        Some(milliseconds) => entry.with_detail("milliseconds", milliseconds),
        None => entry,
    }
}
