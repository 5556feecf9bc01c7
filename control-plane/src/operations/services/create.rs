//! Creates services, and creates and revokes their API keys.

use crate::{
    domain::{
        agent::Owner,
        audit::{AuditAction, AuditedObject, Initiator, NewAuditEntry},
        change::{Change, Changed},
        credential::Credential,
        quota::ExceededQuota,
        resource_uri::ResourceUris,
        service::{KeyScope, Service, ServiceKey},
        text::{DisplayName, ManagedBy},
        total::Total,
    },
    operations::{Context, NotFound, OperationError, authorize::lock_managed_service},
    store::{WriteTransaction, quotas, services, totals},
};
use countersign_identity::{ApiKeyId, ServiceId};
use secrecy::SecretString;

#[derive(Debug)]
pub struct NewService {
    pub name: DisplayName,
    /// Whether the service accepts tokens that are not bound to a service.
    pub accepts_unbound: bool,
    /// The label of the set of declaration files that manages the service (`managedBy`), if any.
    pub managed_by: Option<ManagedBy>,
}

#[derive(Debug)]
pub struct NewServiceKey {
    pub name: DisplayName,
    pub scope: KeyScope,
    /// The label of the set of declaration files that manages the API key (`managedBy`), if any.
    pub managed_by: Option<ManagedBy>,
}

/// How many revoked API keys of a service we keep. The audit log records the revocation of every key.
const KEPT_REVOKED_KEYS: i64 = 100;

/// Maximum number of older revoked API keys that one revocation deletes. If there are more, the next revocations delete the others.
const MAX_DELETED_PER_REVOCATION: i64 = 10;

/// Creates a service that `owner` owns. An owner can have only one service with a given name and a given `managed_by`.
pub async fn create_service(
    context: &Context,
    initiator: &Initiator,
    owner: Owner,
    request: NewService,
) -> Result<Service, OperationError> {
    let NewService { name, accepts_unbound, managed_by } = request;
    let id = context.new_id(ServiceId::from_bits);
    let created_at = context.now();
    let resource_uris = ResourceUris::default();
    let service =
        &Service { id, owner, name, accepts_unbound, resource_uris, managed_by, created_at, deleted_at: None };
    let entry = &NewAuditEntry::for_service(id, AuditAction::ServiceCreated)
        .with_detail("name", service.name.as_str())
        .with_detail("acceptsUnboundTokens", accepts_unbound)
        .managed_by_if_changed(None, service.managed_by.as_ref());
    let limit = context.config.quotas.services_per_person;
    let work = async |mut tx: WriteTransaction| {
        let now = tx.now();
        quotas::lock_owner(tx.conn(), &service.owner, now).await?;
        if quotas::service_quota_is_reached(tx.conn(), &service.owner, limit, now).await? {
            return Err(ExceededQuota::ServicesPerPerson(limit).into());
        }
        refuse_managed_duplicate(&mut tx, service).await?;
        services::insert(tx.conn(), service).await?;
        totals::add(tx.conn(), Total::Services, 1).await?;
        tx.audit(initiator, entry).await?;
        Ok(tx.commit(service.clone()).await?)
    };
    context.store.write("create_service", work).await
}

/// Refuses a service with a `managed_by` if its owner has another one with the same name and `managed_by`. The caller must have locked
/// the owner.
pub(super) async fn refuse_managed_duplicate(
    tx: &mut WriteTransaction,
    service: &Service,
) -> Result<(), OperationError> {
    if services::has_managed_duplicate(tx.conn(), service).await? {
        return Err(already_managed("service", service.name.as_str(), service.managed_by.as_ref()));
    }
    Ok(())
}

/// The error for a second service, API key or webhook (`what`) with the same name and the same `managed_by`.
pub(in crate::operations) fn already_managed(what: &str, name: &str, managed_by: Option<&ManagedBy>) -> OperationError {
    let managed_by = managed_by.map_or("", ManagedBy::as_str);
    OperationError::Conflict(format!("another {what} `{name}` with the same `managedBy` `{managed_by}` exists"))
}

/// Creates an API key. Only the creation of an API key returns the key in plain text.
pub async fn create_service_key(
    context: &Context,
    initiator: &Initiator,
    service: ServiceId,
    request: NewServiceKey,
) -> Result<(ServiceKey, SecretString), OperationError> {
    let NewServiceKey { name, scope, managed_by } = request;
    let credential = Credential::new(context.new_id(ApiKeyId::from_bits), context.new_secret());
    let (id, secret, created_at) = (credential.id(), credential.hash(), context.now());
    let new_key = |owner| ServiceKey {
        id,
        service,
        owner,
        name: name.clone(),
        scope,
        managed_by: managed_by.clone(),
        secret: secret.clone(),
        created_at,
        revoked_at: None,
    };
    let entry = &NewAuditEntry::for_service(service, AuditAction::ServiceKeyCreated)
        .object(AuditedObject::ServiceKey(id))
        .with_detail("name", name.as_str())
        .with_detail("scope", scope.as_str())
        .managed_by_if_changed(None, managed_by.as_ref());
    let limit = context.config.quotas.keys_per_service;
    let work = async |mut tx: WriteTransaction| {
        let key = new_key(lock_managed_service(&mut tx, initiator, service).await?.owner);
        if quotas::key_quota_is_reached(tx.conn(), service, limit).await? {
            return Err(ExceededQuota::KeysPerService(limit).into());
        }
        if let Some(managed_by) = &managed_by
            && services::has_managed_key(tx.conn(), service, &name, managed_by).await?
        {
            return Err(already_managed("API key", name.as_str(), Some(managed_by)));
        }
        services::insert_key(tx.conn(), &key).await?;
        tx.audit(initiator, entry).await?;
        Ok(tx.commit(key).await?)
    };
    Ok((context.store.write("create_service_key", work).await?, credential.reveal()))
}

/// Revokes an API key of a service. Also deletes the keys of the service that were revoked first, so that a service cannot fill the
/// database with revoked keys. Returns false if the key was already revoked.
pub async fn revoke_service_key(
    context: &Context,
    initiator: &Initiator,
    service: ServiceId,
    key: ApiKeyId,
) -> Result<Changed<bool>, OperationError> {
    let entry =
        &NewAuditEntry::for_service(service, AuditAction::ServiceKeyRevoked).object(AuditedObject::ServiceKey(key));
    let work = async |mut tx: WriteTransaction| {
        lock_managed_service(&mut tx, initiator, service).await?;
        let now = tx.now();
        let revoked = services::revoke_key(tx.conn(), service, key, now).await?;
        if revoked {
            let (kept, limit) = (KEPT_REVOKED_KEYS, MAX_DELETED_PER_REVOCATION);
            services::delete_oldest_revoked_keys(tx.conn(), service, kept, limit).await?;
            tx.audit(initiator, entry).await?;
            // This makes each sync stream of the service's sidecars check its API key, so a stream with the revoked key ends.
            tx.record_change(Change::ServiceSettings(service));
        } else if !services::has_key(tx.conn(), service, key).await? {
            // The API key does not exist, or belongs to another service.
            return Err(NotFound::Key.into());
        }
        Ok(tx.commit_change(revoked).await?)
    };
    context.store.write("revoke_service_key", work).await
}
