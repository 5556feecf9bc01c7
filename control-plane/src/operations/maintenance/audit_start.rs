//! Begin the audit of a database that has none.

use crate::{
    domain::audit::{AuditAction, Initiator, NewAuditEntry},
    operations::OperationError,
    store::{Store, Write, audit},
};

/// Begins the chain of the deployment, and those of services that were made before there was an audit. Once: a chain that
/// is missing later is missed.
pub async fn ensure_audit_started(store: &Store) -> Result<(), OperationError> {
    let work = async |mut tx: Write| {
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
