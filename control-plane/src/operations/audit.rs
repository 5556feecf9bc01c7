//! Reads the audit log.

use super::{Context, OperationError, require_owner};
use crate::{
    domain::{
        audit::{AuditChain, chain::AuditEntry},
        caller::Human,
        page::{ListPage, Page},
    },
    store::audit,
};
use countersign_identity::Reason;

pub use crate::store::audit::AuditFilter;

/// Lists audit entries, newest first. The owner of a service may read the chain of the service, and administrators may read
/// all chains.
pub async fn list_audit_entries(
    context: &Context,
    human: &Human,
    filter: &AuditFilter,
    page: Page,
) -> Result<ListPage<AuditEntry>, OperationError> {
    match filter.chain {
        Some(AuditChain::Service(service)) => require_owner(context, human, service).await.map(drop)?,
        Some(AuditChain::Deployment) | None if human.is_admin => {}
        Some(AuditChain::Deployment) | None => return Err(Reason::NotYours.into()),
    }
    Ok(audit::list(context.store.read().await?.conn(), filter, page).await?)
}
