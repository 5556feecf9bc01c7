//! Invalidates credentials after a database was restored from a backup.

use crate::{
    domain::{
        audit::{AuditAction, Initiator, NewAuditEntry},
        change::FeedPosition,
    },
    operations::OperationError,
    store::{
        Store, WriteTransaction, audit,
        deployment::{self, Quarantine},
        feed, sidecars, unused_agents,
    },
};
use countersign_identity::Timestamp;
use countersign_process::format_rfc3339;
use std::time::Duration;

/// More changes than any deployment makes while its revision is ahead of the clock, as it is for some minutes after a restore.
const REVISIONS_AFTER_RESTORE: i64 = 1_000_000;

#[derive(Debug)]
pub struct RestoreReport {
    /// All access tokens, sessions and challenges that were issued before this time are invalid.
    pub at: Timestamp,
    /// The quarantine mark that was removed (why and since when the database must not be served), if there was one.
    pub previous_quarantine: Option<Quarantine>,
    /// Time of the last change in the restored database.
    pub newest_change_at: Timestamp,
}

/// Prepares a restored database. No process may serve the database meanwhile. Uses and revocations of credentials after the backup
/// are lost, so all sessions, tokens and challenges become invalid, and sidecars load a new snapshot. `max_staleness` is the age of a
/// view at which a sidecar refuses all requests.
pub async fn invalidate_credentials_after_restore(
    store: &Store,
    max_staleness: Duration,
) -> Result<RestoreReport, OperationError> {
    let work = async |mut tx: WriteTransaction| {
        let at = tx.now();
        let previous_quarantine = deployment::find_quarantine(tx.conn()).await?;
        let newest_change_at = newest_change_time(&mut tx).await?;
        let entry = NewAuditEntry::for_deployment(AuditAction::DatabaseRestored)
            .with_detail("newestChangeAt", format_rfc3339(newest_change_at));
        // The backup lacks later logins, so agents without a login in the backup get the full time again before they are deleted.
        unused_agents::restart_waiting(tx.conn(), at).await?;
        // The backup lacks sidecars that connected after it. They may still decide until their data is too old.
        sidecars::record_unknown(tx.conn(), at, max_staleness).await?;
        tx.audit(&Initiator::SYSTEM, &entry).await?;
        feed::advance_after_restore(tx.conn(), at).await?;
        deployment::lift_quarantine(tx.conn()).await?;
        Ok::<_, OperationError>(tx.commit(RestoreReport { at, previous_quarantine, newest_change_at }).await?)
    };
    store.write("invalidate_credentials_after_restore", work).await
}

/// The time of the last change in the database: the time of the newest audit entry, of the newest entry of the change feed or of
/// the revision, whichever is the latest.
async fn newest_change_time(tx: &mut WriteTransaction) -> Result<Timestamp, OperationError> {
    let at = tx.now();
    let known = [audit::newest_entry_time(tx.conn()).await?, feed::newest_change_time(tx.conn()).await?];
    let FeedPosition { revision, cutoff, floor: _ } = feed::position(tx.conn()).await?;
    // The revision of a transaction is its time in microseconds. But if the previous revision is ahead of the clock, as for some minutes
    // after a restore, the revision is the previous one plus 1, and tells no time.
    let counts_up = revision.number().saturating_sub(cutoff.number()) < REVISIONS_AFTER_RESTORE;
    let by_revision = Timestamp::from_micros(revision.number()).min(at);
    let by_revision = (!counts_up).then_some(by_revision);
    Ok(known.into_iter().chain([by_revision]).flatten().max().unwrap_or(at))
}
