//! Starts the audit log of a database that has none.

use crate::{
    domain::audit::{AuditAction, Initiator, NewAuditEntry},
    operations::OperationError,
    store::{Store, WriteTransaction, audit},
};

/// Starts the audit chain of the Countersign deployment, and the audit chains of services that are older than the audit log.
/// Does nothing if the audit log was started before: if a chain is missing from a started audit log, `audit verify` reports
/// an error.
pub async fn ensure_audit_started(store: &Store) -> Result<(), OperationError> {
    let work = async |mut tx: WriteTransaction| {
        if !audit::lock_and_check_started(tx.conn()).await? {
            tx.audit(&Initiator::SYSTEM, &NewAuditEntry::for_deployment(AuditAction::AuditBegan)).await?;
            for service in audit::services_without_chain(tx.conn()).await? {
                tx.audit(&Initiator::SYSTEM, &NewAuditEntry::for_service(service, AuditAction::AuditBegan)).await?;
            }
        }
        Ok::<_, OperationError>(tx.commit(()).await?)
    };
    store.write("ensure_audit_started", work).await
}
