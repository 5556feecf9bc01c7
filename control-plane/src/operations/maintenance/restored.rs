//! Invalidates credentials after a database was restored from a backup.

use crate::{
    domain::{
        audit::{AuditAction, Initiator, NewAuditEntry},
        timestamp::format_rfc3339,
    },
    operations::OperationError,
    store::{
        Store, Write, audit,
        deployment::{self, Quarantine},
        feed,
    },
};
use countersign_identity::Timestamp;

/// What the restored database contained and when it was invalidated.
#[derive(Debug)]
pub struct RestoreReport {
    /// Access tokens, sessions and challenges from before this time are invalid.
    pub at: Timestamp,
    /// The mark of a backup or of a moved database, if there was one.
    pub was: Option<Quarantine>,
    /// Time of the last change in the restored state.
    pub newest: Timestamp,
}

/// Prepares a restored database for serving. No process may serve it meanwhile. Changes since the backup are lost, so
/// everything that may have been used, ended or revoked since then becomes invalid, and sidecars load a new snapshot.
pub async fn invalidate_credentials_after_restore(store: &Store) -> Result<RestoreReport, OperationError> {
    let work = async |mut tx: Write| {
        let at = tx.now();
        let was = deployment::find_quarantine(tx.conn()).await?;
        // A revision is a timestamp, unless changes came faster than one per microsecond or the clock went back.
        let changed = Timestamp::from_micros(feed::position(tx.conn()).await?.revision.number()).min(at);
        let newest = audit::newest_time(tx.conn()).await?.map_or(changed, |audited| audited.max(changed));
        let entry = NewAuditEntry::for_deployment(AuditAction::DatabaseRestored)
            .detail("newestChangeAt", format_rfc3339(newest));
        tx.audit(&Initiator::SYSTEM, &entry).await?;
        feed::advance_after_restore(tx.conn(), at).await?;
        deployment::lift_quarantine(tx.conn()).await?;
        Ok::<_, OperationError>(tx.commit(RestoreReport { at, was, newest }).await?)
    };
    store.write("invalidate_credentials_after_restore", work).await
}
