//! Authorization of callers.

use super::{Context, NotFound, OperationError};
use crate::{
    domain::{
        audit::{Actor, Initiator},
        caller::{Caller, Human},
        credential::Credential,
        service::{Service, ServiceKey},
    },
    store::{WriteTransaction, services},
};
use countersign_identity::{ApiKeyId, Reason, ServiceId};

/// Authenticates a caller by a service API key. The error is the same for unknown, wrong and revoked keys.
pub async fn find_service_key(context: &Context, text: &str) -> Result<ServiceKey, OperationError> {
    let credential = Credential::<ApiKeyId>::parse(text).ok_or(Reason::ServiceKeyInvalid)?;
    let key = services::find_key_by_credential(context.store.read().await?.conn(), &credential).await?;
    Ok(key.ok_or(Reason::ServiceKeyInvalid)?)
}

/// Requires a caller who may manage the service: a key of the service with scope `full`, its owner, or an administrator.
pub async fn require_manager(context: &Context, caller: &Caller, service: ServiceId) -> Result<(), OperationError> {
    match caller {
        Caller::Service(_) => Ok(caller.require_full_scope_key(service)?),
        Caller::Human(human) => require_owner(context, human, service).await.map(drop),
    }
}

/// Requires a human user who may create services.
pub fn require_service_creator(context: &Context, human: &Human) -> Result<(), OperationError> {
    if context.config.only_admins_create_services {
        human.require_admin()?;
    }
    Ok(())
}

/// Requires the owner of the service or an administrator, and returns the service.
pub async fn require_owner(context: &Context, human: &Human, service: ServiceId) -> Result<Service, OperationError> {
    let service = services::find_live(context.store.read().await?.conn(), service).await?;
    let service = service.ok_or(OperationError::NotFound(NotFound::Service))?;
    human.require_owner_of(&service)?;
    Ok(service)
}

/// Locks a service until the transaction ends.
pub(in crate::operations) async fn lock_service(
    tx: &mut WriteTransaction,
    service: ServiceId,
) -> Result<Service, OperationError> {
    services::lock(tx.conn(), service).await?;
    services::find_live(tx.conn(), service).await?.ok_or(OperationError::NotFound(NotFound::Service))
}

/// Locks a service until the transaction ends, and requires again that the initiator may manage it. The initiator was authorized
/// before the transaction; since then, another transaction can have transferred or deleted the service, or revoked the API key.
pub(in crate::operations) async fn lock_managed_service(
    tx: &mut WriteTransaction,
    initiator: &Initiator,
    service: ServiceId,
) -> Result<Service, OperationError> {
    let current = lock_service(tx, service).await?;
    match &initiator.actor {
        Actor::Human(human) => human.require_owner_of(&current)?,
        Actor::ServiceKey(key) => {
            let key = services::find_key(tx.conn(), *key).await?.ok_or(Reason::ServiceKeyInvalid)?;
            Caller::Service(key).require_full_scope_key(service)?;
        }
        Actor::Public => return Err(Reason::NotYours.into()),
        // The control plane creates the first service and its API key in development.
        Actor::System => {}
    }
    Ok(current)
}
