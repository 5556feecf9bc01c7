//! Changes and deletes a service.

use super::create::refuse_managed_duplicate;
use crate::{
    domain::{
        audit::{Actor, AuditAction, Initiator, NewAuditEntry},
        change::{Change, Changed},
        resource_uri::ResourceUris,
        service::{Service, ServiceOrDeployment},
        text::{DisplayName, ManagedBy},
        total::Total,
    },
    operations::{Context, OperationError, authorize::lock_managed_service, find::find_service},
    store::{
        WriteTransaction, deployment, quotas, resource_uris, service_transfers, services, totals, webhook_targets,
    },
};
use countersign_identity::ServiceId;

/// The changes to make to a service. `None` leaves a field unchanged.
#[derive(Debug, Clone)]
pub struct ServiceChange {
    pub name: Option<DisplayName>,
    /// Whether the service accepts tokens that are not bound to a service.
    pub accepts_unbound: Option<bool>,
    /// The new resource URIs, in place of all others.
    pub resource_uris: Option<ResourceUris>,
    pub managed_by: Option<ManagedBy>,
}

/// Changes a service. The sidecars of the service receive new settings on their sync streams.
pub async fn change_service(
    context: &Context,
    initiator: &Initiator,
    service: ServiceId,
    change: &ServiceChange,
) -> Result<Changed<Service>, OperationError> {
    let work = async |mut tx: WriteTransaction| {
        let now = tx.now();
        // No other service of the owner must get the same name and `managedBy` meanwhile, so we lock the owner. A transfer locks in
        // the same order, first an owner and then the service.
        let owner = if change.name.is_some() || change.managed_by.is_some() {
            let owner = find_service(tx.conn(), service).await?.owner;
            quotas::lock_owner(tx.conn(), &owner, now).await?;
            Some(owner)
        } else {
            None
        };
        let before = lock_managed_service(&mut tx, initiator, service).await?;
        if owner.is_some_and(|owner| owner != before.owner) {
            return Err(OperationError::Conflict("the service was transferred meanwhile: try again".to_owned()));
        }
        let ServiceChange { name, accepts_unbound, resource_uris, managed_by } = change.clone();
        let after = Service {
            name: name.unwrap_or_else(|| before.name.clone()),
            accepts_unbound: accepts_unbound.unwrap_or(before.accepts_unbound),
            resource_uris: resource_uris.unwrap_or_else(|| before.resource_uris.clone()),
            managed_by: managed_by.or_else(|| before.managed_by.clone()),
            ..before.clone()
        };
        if (&after.name, &after.managed_by) != (&before.name, &before.managed_by) {
            refuse_managed_duplicate(&mut tx, &after).await?;
        }
        if after.resource_uris != before.resource_uris {
            claim_resource_uris(&mut tx, initiator, &after).await?;
        }
        services::update(tx.conn(), &after, now).await?;
        let entry = NewAuditEntry::for_service(service, AuditAction::ServiceChanged)
            .detail_if_changed("name", before.name.as_str(), after.name.as_str())
            .detail_if_changed("acceptsUnboundTokens", before.accepts_unbound, after.accepts_unbound)
            .detail_if_changed("resourceUris", before.resource_uris.to_string(), after.resource_uris.to_string())
            .managed_by_if_changed(before.managed_by.as_ref(), after.managed_by.as_ref());
        if !entry.details.is_empty() {
            tx.audit(initiator, &entry).await?;
        }
        if after.settings() != before.settings() {
            tx.record_change(Change::ServiceSettings(service));
        }
        Ok(tx.commit_change(after).await?)
    };
    context.store.write("change_service", work).await
}

/// Stores the resource URIs of the service. Only one owner may have URIs at a host: an agent that requests a token for a URI gets one
/// for the service with this URI, which must not belong to a stranger. Only administrators can let several owners share a host.
async fn claim_resource_uris(
    tx: &mut WriteTransaction,
    initiator: &Initiator,
    service: &Service,
) -> Result<(), OperationError> {
    let is_admin = matches!(&initiator.actor, Actor::Human(human) if human.is_admin);
    // Without this lock, two owners could claim the same host at the same time.
    deployment::lock(tx.conn()).await?;
    for uri in service.resource_uris.iter() {
        if resource_uris::find_service(tx.conn(), uri).await?.is_some_and(|other| other != service.id) {
            return Err(OperationError::Conflict(format!("another service has the resource URI `{}`", uri.as_str())));
        }
        if !is_admin && resource_uris::has_other_owner(tx.conn(), uri, service).await? {
            return Err(OperationError::Conflict(format!(
                "a service of another owner has a resource URI at `{}`: only an administrator can share it",
                uri.host()
            )));
        }
    }
    Ok(resource_uris::replace(tx.conn(), service).await?)
}

/// Deletes a service. This takes effect at once: API keys, webhooks, roles and tokens of the service are refused everywhere, and a
/// last entry seals its audit chain. Quotas limit the number of API keys and webhooks, so one transaction can end all of them.
/// Housekeeping removes the other rows later.
///
/// Feedback of the service keeps its weight in the trust scores of agents. Otherwise, an owner could change trust scores, and erase
/// the history of the feedback, by deleting the service.
pub async fn delete_service(
    context: &Context,
    initiator: &Initiator,
    service: ServiceId,
) -> Result<Changed<()>, OperationError> {
    let work = async |mut tx: WriteTransaction| {
        let now = tx.now();
        lock_managed_service(&mut tx, initiator, service).await?;
        services::mark_deleted(tx.conn(), service, now).await?;
        let keys = services::revoke_all_keys(tx.conn(), service, now).await?;
        let mut webhooks = webhook_targets::list(tx.conn(), ServiceOrDeployment::Service(service)).await?;
        webhooks.sort_by_key(|webhook| webhook.id);
        for webhook in &webhooks {
            webhook_targets::mark_deleted(tx.conn(), webhook.id, now).await?;
        }
        service_transfers::delete(tx.conn(), service).await?;
        resource_uris::delete(tx.conn(), service).await?;
        totals::add(tx.conn(), Total::Services, -1).await?;
        let entry = NewAuditEntry::for_service(service, AuditAction::ServiceDeleted)
            .with_detail("revokedKeys", keys)
            .with_detail("deletedWebhooks", webhooks.len());
        tx.audit(initiator, &entry).await?;
        tx.record_change(Change::ServiceSettings(service));
        tx.record_change(Change::Definitions(service));
        Ok(tx.commit_change(()).await?)
    };
    context.store.write("delete_service", work).await
}
