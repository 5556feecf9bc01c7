//! Changes the name of a service, whether the service accepts unbound tokens, and the name of the files that state it.

use super::create::refuse_managed_twin;
use crate::{
    domain::{
        audit::{AuditAction, Initiator, NewAuditEntry},
        change::{Change, Changed},
        service::Service,
        text::{DisplayName, ManagedBy},
    },
    operations::{Context, NotFound, OperationError, authorize::lock_managed_service},
    store::{WriteTransaction, quotas, services},
};
use countersign_identity::ServiceId;

/// The changes to make. `None` leaves a field unchanged.
#[derive(Debug, Clone)]
pub struct ServiceChange {
    /// New display name.
    pub name: Option<DisplayName>,
    /// Whether the service accepts tokens that are not bound to a service.
    pub accepts_unbound: Option<bool>,
    /// The new name of the files that state the service.
    pub managed_by: Option<ManagedBy>,
}

/// Changes a service. If `accepts_unbound` changes, the sidecars of the service receive the new value on their sync streams.
pub async fn change_service(
    context: &Context,
    initiator: &Initiator,
    service: ServiceId,
    change: &ServiceChange,
) -> Result<Changed<Service>, OperationError> {
    let work = async |mut tx: WriteTransaction| {
        let now = tx.now();
        // The owner is locked before the service, as by a transfer.
        let owner = if change.name.is_some() || change.managed_by.is_some() {
            let found =
                services::find_live(tx.conn(), service).await?.ok_or(OperationError::NotFound(NotFound::Service))?;
            quotas::lock_owner(tx.conn(), &found.owner, now).await?;
            Some(found.owner)
        } else {
            None
        };
        let before = lock_managed_service(&mut tx, initiator, service).await?;
        if owner.is_some_and(|owner| owner != before.owner) {
            return Err(OperationError::Conflict("the service was transferred meanwhile: try again".to_owned()));
        }
        let ServiceChange { name, accepts_unbound, managed_by } = change.clone();
        let after = Service {
            name: name.unwrap_or_else(|| before.name.clone()),
            accepts_unbound: accepts_unbound.unwrap_or(before.accepts_unbound),
            managed_by: managed_by.or_else(|| before.managed_by.clone()),
            ..before.clone()
        };
        if (&after.name, &after.managed_by) != (&before.name, &before.managed_by) {
            refuse_managed_twin(&mut tx, &after).await?;
        }
        services::update(tx.conn(), &after, now).await?;
        let entry = NewAuditEntry::for_service(service, AuditAction::ServiceChanged)
            .detail_if_changed("name", before.name.as_str(), after.name.as_str())
            .detail_if_changed("acceptsUnboundTokens", before.accepts_unbound, after.accepts_unbound)
            .managed_by_if_changed(before.managed_by.as_ref(), after.managed_by.as_ref());
        if !entry.details.is_empty() {
            tx.audit(initiator, &entry).await?;
        }
        if after.accepts_unbound != before.accepts_unbound {
            tx.record_change(Change::ServiceSettings(service));
        }
        Ok(tx.commit_change(after).await?)
    };
    context.store.write("change_service", work).await
}
