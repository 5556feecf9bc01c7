//! Deletes a service.

use crate::{
    domain::{
        audit::{AuditAction, Initiator, NewAuditEntry},
        change::{Change, Changed},
        total::Total,
        webhook::WebhookScope,
    },
    operations::{Context, OperationError, authorize::lock_managed_service},
    store::{WriteTransaction, resource_uris, service_transfers, services, totals, webhook_targets},
};
use countersign_identity::ServiceId;

/// Deletes a service. Takes effect at once: API keys, webhooks, roles and tokens of the service are refused everywhere, and the
/// audit chain of the service is sealed with a last entry. The number of API keys and webhooks is limited by quotas;
/// housekeeping removes what is not limited.
///
/// Feedback of the service remains in the trust scores of agents with the weight that it has: otherwise the owner of a service
/// could move trust scores, and erase the history of what was said, by deleting the service.
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
        let mut webhooks = webhook_targets::list(tx.conn(), WebhookScope::Service(service)).await?;
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
