//! Read who did what.

use super::{Context, Denied, require_owner};
use crate::{
    domain::{
        audit::{Chain, chain::Link},
        caller::Human,
        page::{Listed, Page},
    },
    store::audit,
};
use countersign_identity::Reason;

pub use crate::store::audit::LinkFilter;

/// Acts, newest first: those at a service for its owner, all for an administrator.
pub async fn list_acts(
    context: &Context,
    human: &Human,
    filter: &LinkFilter,
    page: Page,
) -> Result<Listed<Link>, Denied> {
    match filter.chain {
        Some(Chain::Service(service)) => require_owner(context, human, service).await.map(drop)?,
        Some(Chain::Deployment) | None if human.admin => {}
        Some(Chain::Deployment) | None => return Err(Reason::NotYours.into()),
    }
    Ok(audit::list(context.store.read().await?.conn(), filter, page).await?)
}
