//! Authorization of callers.

use super::{Context, NotFound, OperationError};
use crate::{
    domain::{
        caller::{Caller, Human},
        credential::Credential,
        service::{Service, ServiceKey},
    },
    store::services,
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
