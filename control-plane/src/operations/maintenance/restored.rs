//! Make a database that was restored forget what may not be so any more.

use crate::{
    domain::{
        audit::{AuditAction, Initiator, NewAuditEntry},
        instant::rfc3339,
    },
    operations::OperationError,
    store::{
        Store, Write, audit,
        deployment::{self, Quarantine},
        feed,
    },
};
use countersign_identity::Timestamp;

/// What was found and done.
#[derive(Debug)]
pub struct Settled {
    /// Access tokens, logins and challenges of before are dead.
    pub at: Timestamp,
    /// What it said of itself.
    pub was: Option<Quarantine>,
    /// When anything changed in it for the last time.
    pub newest: Timestamp,
}

/// Settles a database that was restored, with nobody serving it. What happened since the backup is not in it: so what may
/// have been used, ended or revoked meanwhile is dead, and sidecars begin anew.
pub async fn invalidate_credentials_after_restore(store: &Store) -> Result<Settled, OperationError> {
    let work = async |mut tx: Write| {
        let at = tx.now();
        let was = deployment::find_quarantine(tx.conn()).await?;
        // Revisions are instants, unless changes came faster than microseconds or a clock went back.
        let changed = Timestamp::from_micros(feed::position(tx.conn()).await?.revision.number()).min(at);
        let newest = audit::newest_time(tx.conn()).await?.map_or(changed, |act| act.max(changed));
        let entry =
            NewAuditEntry::for_deployment(AuditAction::DatabaseRestored).detail("newestChangeAt", rfc3339(newest));
        tx.audit(&Initiator::SYSTEM, &entry).await?;
        feed::advance_after_restore(tx.conn(), at).await?;
        deployment::lift_quarantine(tx.conn()).await?;
        Ok::<_, OperationError>(tx.commit(Settled { at, was, newest }).await?)
    };
    store.write("invalidate_credentials_after_restore", work).await
}
