//! Changes the name of a service, and whether the service accepts unbound tokens.

use crate::{
    domain::{
        audit::{AuditAction, Initiator, NewAuditEntry},
        change::{Change, Changed},
        service::Service,
        text::DisplayName,
    },
    operations::{Context, OperationError, authorize::lock_managed_service},
    store::{WriteTransaction, services},
};
use countersign_identity::ServiceId;

/// The changes to make. `None` leaves a field unchanged.
#[derive(Debug, Clone)]
pub struct ServiceChange {
    /// New display name.
    pub name: Option<DisplayName>,
    /// Whether the service accepts tokens that are not bound to a service.
    pub accepts_unbound: Option<bool>,
}

/// Changes a service. If `accepts_unbound` changes, the sidecars of the service receive the new value on their sync streams.
pub async fn change_service(
    context: &Context,
    initiator: &Initiator,
    service: ServiceId,
    change: &ServiceChange,
) -> Result<Changed<Service>, OperationError> {
    let work = async |mut tx: WriteTransaction| {
        let before = lock_managed_service(&mut tx, initiator, service).await?;
        let ServiceChange { name, accepts_unbound } = change.clone();
        let after = Service {
            name: name.unwrap_or_else(|| before.name.clone()),
            accepts_unbound: accepts_unbound.unwrap_or(before.accepts_unbound),
            ..before.clone()
        };
        let now = tx.now();
        services::update(tx.conn(), &after, now).await?;
        let entry = NewAuditEntry::for_service(service, AuditAction::ServiceChanged)
            .detail_if_changed("name", before.name.as_str(), after.name.as_str())
            .detail_if_changed("acceptsUnboundTokens", before.accepts_unbound, after.accepts_unbound);
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
