//! Transfers a service to another person: the owner offers it, and the receiver accepts.

use crate::{
    domain::{
        agent::Owner,
        audit::{AuditAction, Initiator, NewAuditEntry},
        caller::Human,
        change::Change,
        page::{ListPage, Page},
        quota::ExceededQuota,
        service::{Service, ServiceTransfer, TRANSFER_LIFETIME},
    },
    operations::{
        Context, NotFound, OperationError,
        authorize::lock_managed_service,
        find::{find_service, lock_service},
    },
    store::{Conn, WriteTransaction, quotas, service_transfers, services},
};
use countersign_identity::{Reason, ServiceId, Timestamp};
use serde_json::{Value, json};

/// Offers a service to another person, who has [`TRANSFER_LIFETIME`] to accept. Replaces an earlier offer. We cannot check whether
/// the person exists, because we know only people who have sent a token.
pub async fn offer_service(
    context: &Context,
    initiator: &Initiator,
    service: ServiceId,
    new_owner: &Owner,
) -> Result<ServiceTransfer, OperationError> {
    let work = async |mut tx: WriteTransaction| {
        let current = lock_managed_service(&mut tx, initiator, service).await?;
        if current.owner == *new_owner {
            return Err(OperationError::Invalid { field: "subject", message: "must be another user than the owner" });
        }
        let now = tx.now();
        let before = service_transfers::find(tx.conn(), service, now).await?;
        let expires_at = now.saturating_add(TRANSFER_LIFETIME);
        let Service { name, owner: offered_by, .. } = current;
        let new_owner = new_owner.clone();
        let offer = ServiceTransfer { service, name, offered_by, new_owner, offered_at: now, expires_at };
        service_transfers::upsert(tx.conn(), &offer).await?;
        if before.is_none_or(|before| before.new_owner != offer.new_owner) {
            let entry = NewAuditEntry::for_service(service, AuditAction::ServiceTransferOffered);
            tx.audit(initiator, &entry.with_detail("to", owner_detail(&offer.new_owner))).await?;
        }
        Ok(tx.commit(offer).await?)
    };
    context.store.write("offer_service", work).await
}

/// Reads the offer of a service. Only its owner, the receiver of the offer and administrators may read it.
pub async fn read_service_offer(
    context: &Context,
    human: &Human,
    service: ServiceId,
) -> Result<ServiceTransfer, OperationError> {
    let mut read = context.store.read().await?;
    let current = find_service(read.conn(), service).await?;
    find_offer(read.conn(), human, &current, context.now()).await
}

/// Lists the offers to the calling user.
pub async fn list_service_offers(
    context: &Context,
    human: &Human,
    page: Page<ServiceId>,
) -> Result<ListPage<ServiceTransfer, ServiceId>, OperationError> {
    let mut read = context.store.read().await?;
    Ok(service_transfers::list(read.conn(), &human.identity, context.now(), page).await?)
}

/// Withdraws the offer of a service as its owner, or declines it as its receiver. Returns whether the receiver declined.
pub async fn withdraw_service_offer(
    context: &Context,
    initiator: &Initiator,
    human: &Human,
    service: ServiceId,
) -> Result<bool, OperationError> {
    let work = async |mut tx: WriteTransaction| {
        let current = lock_service(&mut tx, service).await?;
        let now = tx.now();
        let offer = find_offer(tx.conn(), human, &current, now).await?;
        service_transfers::delete(tx.conn(), service).await?;
        let entry = NewAuditEntry::for_service(service, AuditAction::ServiceTransferWithdrawn);
        tx.audit(initiator, &entry.with_detail("to", owner_detail(&offer.new_owner))).await?;
        Ok(tx.commit(offer.new_owner == human.identity).await?)
    };
    context.store.write("withdraw_service_offer", work).await
}

/// Accepts the offer of a service. Only its receiver may accept, so that nobody gets a service without consent. API keys, webhooks
/// and roles continue to work, but no longer have a `managedBy`: the declaration files of the previous owner do not manage them any
/// more. Whenever we compute a trust score from now on, the feedback of the service counts as the new owner's.
pub async fn accept_service(
    context: &Context,
    initiator: &Initiator,
    human: &Human,
    service: ServiceId,
) -> Result<Service, OperationError> {
    let limit = context.config.quotas.services_per_person;
    let work = async |mut tx: WriteTransaction| {
        let (now, new_owner) = (tx.now(), &human.identity);
        quotas::lock_owner(tx.conn(), new_owner, now).await?;
        let current = lock_service(&mut tx, service).await?;
        let offer = find_offer(tx.conn(), human, &current, now).await?;
        if offer.new_owner != *new_owner {
            return Err(Reason::NotYours.into());
        }
        if quotas::service_quota_is_reached(tx.conn(), new_owner, limit, now).await? {
            return Err(ExceededQuota::ServicesPerPerson(limit).into());
        }
        services::set_owner(tx.conn(), service, new_owner).await?;
        service_transfers::delete(tx.conn(), service).await?;
        let entry = NewAuditEntry::for_service(service, AuditAction::ServiceTransferred)
            .with_detail("from", owner_detail(&current.owner))
            .with_detail("to", owner_detail(new_owner));
        tx.audit(initiator, &entry).await?;
        // All control planes then read the API keys of the service again, because they have its owner in memory with each key.
        tx.record_change(Change::ServiceSettings(service));
        Ok(tx.commit(Service { owner: new_owner.clone(), managed_by: None, ..current }).await?)
    };
    context.store.write("accept_service", work).await
}

/// Finds the offer of a service for its owner, its receiver or an administrator. Others do not learn whether there is an offer.
async fn find_offer(
    conn: &mut Conn,
    human: &Human,
    service: &Service,
    now: Timestamp,
) -> Result<ServiceTransfer, OperationError> {
    let offer = service_transfers::find(conn, service.id, now).await?;
    if offer.as_ref().is_none_or(|offer| offer.new_owner != human.identity) {
        human.require_owner(Some(&service.owner))?;
    }
    Ok(offer.ok_or(NotFound::Transfer)?)
}

/// A person, in the same format as the actor of an audit entry.
fn owner_detail(owner: &Owner) -> Value {
    json!({ "issuer": owner.issuer, "id": owner.subject })
}
