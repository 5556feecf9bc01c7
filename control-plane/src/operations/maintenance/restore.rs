//! Invalidates credentials after a database was restored from a backup.

use crate::{
    domain::{
        audit::{AuditAction, Initiator, NewAuditEntry},
        timestamp::format_rfc3339,
    },
    operations::OperationError,
    store::{
        Store, WriteTransaction, audit,
        deployment::{self, Quarantine},
        feed,
    },
};
use countersign_identity::Timestamp;

/// The result of [`invalidate_credentials_after_restore`].
#[derive(Debug)]
pub struct RestoreReport {
    /// All access tokens, sessions and challenges that were issued before this time are invalid.
    pub at: Timestamp,
    /// The quarantine mark that was removed (why and since when the database must not be served), if there was one.
    pub previous_quarantine: Option<Quarantine>,
    /// Time of the last change in the restored database.
    pub newest_change_at: Timestamp,
}

/// Prepares a restored database. While a restored database is prepared, no process may serve the database. Uses and revocations
/// of credentials after the backup are lost, so all sessions, tokens and challenges become invalid, and sidecars load a new
/// snapshot.
pub async fn invalidate_credentials_after_restore(store: &Store) -> Result<RestoreReport, OperationError> {
    let work = async |mut tx: WriteTransaction| {
        let at = tx.now();
        let previous_quarantine = deployment::find_quarantine(tx.conn()).await?;
        // The revision of a transaction is its time in microseconds, or more if the previous revision was ahead of the clock.
        let feed_changed_at = Timestamp::from_micros(feed::position(tx.conn()).await?.revision.number()).min(at);
        let newest_change_at = audit::newest_entry_time(tx.conn())
            .await?
            .map_or(feed_changed_at, |audited_at| audited_at.max(feed_changed_at));
        let entry = NewAuditEntry::for_deployment(AuditAction::DatabaseRestored)
            .with_detail("newestChangeAt", format_rfc3339(newest_change_at));
        tx.audit(&Initiator::SYSTEM, &entry).await?;
        feed::advance_after_restore(tx.conn(), at).await?;
        deployment::lift_quarantine(tx.conn()).await?;
        Ok::<_, OperationError>(tx.commit(RestoreReport { at, previous_quarantine, newest_change_at }).await?)
    };
    store.write("invalidate_credentials_after_restore", work).await
}
