//! Records in the audit log when changes are in force at all sidecars: each decides with the changes, or refuses all requests.
//!
//! - One audit entry confirms many changes of a chain. It follows the entries of the changes, and contains their positions.
//! - For the chain of a service, we wait for the sidecars of this service, and for the chain of the deployment, for all sidecars.
//! - While we wait for sidecars, later changes of the chain wait for the next entry. A silent sidecar (one without a stream) delays
//!   an entry only until it refuses all requests by itself.
//! - If there are no sidecars, we write no entry.

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

/// After each run, the job pauses twenty times as long as the run took: while it waits, it reads the same sidecars again and again.
const PAUSE_FACTOR: u32 = 20;

/// The longest pause, even after a run in which the database did not respond.
const MAX_PAUSE: Duration = Duration::from_mins(2);

const JOB: &str = "confirm_changes";

/// We stop counting silent sidecars at this number, so that the count stays cheap.
const MAX_SILENT: i64 = 10_000;

/// If a change is still not in force everywhere after this time, we log it, and again after each further interval.
const LOG_INTERVAL: Duration = Duration::from_mins(1);

/// The oldest change that is not in force at all sidecars, and the number of silent sidecars for which it may wait.
#[derive(Debug, Clone, Copy)]
pub struct EnforcementStatus {
    /// When the oldest change was made that is not in force at all sidecars.
    pub oldest_change: Option<Timestamp>,
    /// The number of sidecars without a stream that may still decide, at most [`MAX_SILENT`].
    pub silent_sidecars: i64,
}

/// Confirms changes of the next chains, as far as they are in force. Returns the status after the last chain, and `None` if more
/// chains follow.
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
        // We read the newest revision after the rows, so it includes all changes in the rows.
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

/// Logs the chain of the oldest change that is not in force, because the metric does not say which service is concerned.
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

/// If the changes are in force at all sidecars, records this and returns true.
async fn confirm(context: &Context, changes: &UnconfirmedChanges, newest: Revision) -> Result<bool, OperationError> {
    // Every chain has a scope, so this skips nothing.
    let Some(scope) = ServiceOrDeployment::of_audit_chain(&changes.chain) else { return Ok(true) };
    let revision = changes.awaited.unwrap_or(newest);
    let receipt = context.sidecars.enforcement(None, scope.service(), revision).await?;
    if !receipt.is_complete() {
        if changes.awaited.is_none() {
            // From now on, we wait for the newest revision. Changes that are made later wait for the next entry.
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
