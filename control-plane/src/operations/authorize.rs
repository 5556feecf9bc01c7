//! Authorization of callers.

use super::{
    Context, CurrentState, OperationError,
    find::{find_service, lock_service},
    memory::{CachedKey, ReadAt},
};
use crate::{
    domain::{
        audit::{Actor, Initiator},
        caller::{Caller, Human},
        credential::Credential,
        service::{Service, ServiceKey},
    },
    store::{Conn, StoreError, WriteTransaction, feed, services},
};
use countersign_identity::{ApiKeyId, Reason, ServiceId};
use countersign_process::server::Network;
use std::{net::IpAddr, sync::Arc};

/// Authenticates a caller by a service API key. The error is the same for unknown, wrong and revoked keys. Also returns a state of
/// the database that was read after this call began, and in which the key was not revoked.
pub async fn authenticate_service(
    context: &Context,
    client: IpAddr,
    text: &str,
) -> Result<(Arc<ServiceKey>, Arc<CurrentState>), OperationError> {
    let credential = Credential::<ApiKeyId>::parse(text).ok_or(Reason::ServiceKeyInvalid)?;
    let current = context.recent_changes.current(&context.store).await?;
    let cached = context.service_keys.get(&credential.id());
    let key = match cached.filter(|it| it.applies(&context.recent_changes, &current)) {
        Some(cached) => Some(Arc::clone(&cached.key)),
        None => read_service_key(context, client, credential.id()).await?,
    };
    let key = key.filter(|key| key.secret.matches(&credential)).ok_or(Reason::ServiceKeyInvalid)?;
    Ok((key, current))
}

/// Reads an API key. Each client network has a limited number of reads at a time, so invalid keys delay only their own network.
async fn read_service_key(
    context: &Context,
    client: IpAddr,
    id: ApiKeyId,
) -> Result<Option<Arc<ServiceKey>>, OperationError> {
    let (history, store) = (context.recent_changes.history(), context.store.clone());
    let read = async move {
        let mut read = store.read().await?;
        let Some(key) = services::find_key(read.conn(), id).await? else { return Ok::<_, StoreError>(None) };
        let read_at = ReadAt { history, revision: feed::position(read.conn()).await?.revision };
        Ok(Some(CachedKey { key: Arc::new(key), read_at }))
    };
    let Some(cached) = context.key_lookups.run(Network::of_client(client), read).await? else { return Ok(None) };
    let key = Arc::clone(&cached.key);
    context.service_keys.insert(id, Arc::new(cached));
    Ok(Some(key))
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
    let service = find_service(context.store.read().await?.conn(), service).await?;
    human.require_owner(Some(&service.owner))?;
    Ok(service)
}

/// Locks a service until the transaction ends, and requires again that the initiator may manage it. We authorized the initiator
/// before the transaction. Since then, somebody may have transferred or deleted the service, or revoked the API key.
pub(in crate::operations) async fn lock_managed_service(
    tx: &mut WriteTransaction,
    initiator: &Initiator,
    service: ServiceId,
) -> Result<Service, OperationError> {
    let current = lock_service(tx, service).await?;
    recheck_manager(tx.conn(), &initiator.actor, &current).await??;
    Ok(current)
}

/// Checks whether the actor may manage a service; the inner error says why not. The transaction must have locked the service.
pub(in crate::operations) async fn recheck_manager(
    conn: &mut Conn,
    actor: &Actor,
    service: &Service,
) -> Result<Result<(), Reason>, StoreError> {
    Ok(match actor {
        Actor::Human(human) => human.require_owner(Some(&service.owner)),
        Actor::ServiceKey(key) => match services::find_key(conn, *key).await? {
            Some(key) => Caller::Service(Arc::new(key)).require_full_scope_key(service.id),
            None => Err(Reason::ServiceKeyInvalid),
        },
        Actor::Public => Err(Reason::NotYours),
        // With `--dev`, the control plane itself creates the first service and its API key.
        Actor::System => Ok(()),
    })
}
