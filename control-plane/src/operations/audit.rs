//! Reads the audit log.

use super::{Context, NotFound, OperationError, require_owner};
use crate::{
    domain::{
        audit::chain::AuditEntry,
        caller::Human,
        page::{ListPage, Page},
        service::ServiceOrDeployment,
    },
    store::{audit, services},
};
use countersign_identity::{Reason, ServiceId};

pub use crate::store::audit::{AuditFilter, AuditPosition};

/// Lists audit entries, newest first. The owner of a service may read the chain of the service. Administrators may read all chains,
/// even of deleted services.
pub async fn list_audit_entries(
    context: &Context,
    human: &Human,
    filter: &AuditFilter,
    page: &Page<AuditPosition>,
) -> Result<ListPage<AuditEntry, AuditPosition>, OperationError> {
    match filter.chain {
        Some(ServiceOrDeployment::Service(service)) => require_reader(context, human, service).await?,
        Some(ServiceOrDeployment::Deployment) | None if human.is_admin => {}
        Some(ServiceOrDeployment::Deployment) | None => return Err(Reason::NotYours.into()),
    }
    Ok(audit::list(context.store.read().await?.conn(), filter, page).await?)
}

/// Requires the owner of the service or an administrator. Only administrators learn that a deleted service existed.
async fn require_reader(context: &Context, human: &Human, service: ServiceId) -> Result<(), OperationError> {
    match require_owner(context, human, service).await {
        Err(OperationError::NotFound(NotFound::Service)) if human.is_admin => {
            let deleted = services::find(context.store.read().await?.conn(), service).await?;
            Ok(deleted.map(drop).ok_or(NotFound::Service)?)
        }
        result => result.map(drop),
    }
}
