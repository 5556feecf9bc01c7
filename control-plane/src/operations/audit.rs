//! Read who did what.

use super::{Context, OperationError, require_owner};
use crate::{
    domain::{
        audit::{AuditChain, chain::AuditEntry},
        caller::Human,
        page::{Listed, Page},
    },
    store::audit,
};
use countersign_identity::Reason;

pub use crate::store::audit::AuditFilter;

/// Acts, newest first: those at a service for its owner, all for an administrator.
pub async fn list_acts(
    context: &Context,
    human: &Human,
    filter: &AuditFilter,
    page: Page,
) -> Result<Listed<AuditEntry>, OperationError> {
    match filter.chain {
        Some(AuditChain::Service(service)) => require_owner(context, human, service).await.map(drop)?,
        Some(AuditChain::Deployment) | None if human.admin => {}
        Some(AuditChain::Deployment) | None => return Err(Reason::NotYours.into()),
    }
    Ok(audit::list(context.store.read().await?.conn(), filter, page).await?)
}
