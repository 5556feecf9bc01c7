//! The tables of services and their API keys.

use super::{
    Conn, StoreError, agents::owner_from_row, query::params, row, row_lists::row_list_statements,
    statements::statements, totals,
};
use crate::domain::{
    agent::Owner,
    credential::{Credential, SecretHash},
    page::{ItemCount, ListPage, Page},
    service::{KeyScope, Service, ServiceKey},
    text::{DisplayName, ManagedBy},
    total::Total,
};
use countersign_identity::{ApiKeyId, ServiceId, Timestamp};
use sqlx::any::AnyRow;
use std::collections::HashSet;

/// Replaces the name of a deleted service.
const DELETED_NAME: &str = "deleted";

macro_rules! columns {
    () => {
        "id, owner_issuer, owner_subject, name, refuses_unbound_since, managed_by, created_at, deleted_at, resource_uris"
    };
}

macro_rules! key_columns_from {
    () => {
        "k.id, k.service_id, k.name, k.scope, k.managed_by, k.secret_hash, k.created_at, k.revoked_at, s.owner_issuer, \
         s.owner_subject FROM service_keys k JOIN services s ON s.id = k.service_id"
    };
}

statements! { STATEMENTS:
    INSERT_SERVICE = concat!("INSERT INTO services (", columns!(), ") VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)");
    /// The column `refuses_unbound_since` keeps the time since which the service refuses unbound tokens (tokens for no service).
    UPDATE_SERVICE = "UPDATE services SET name = $1, refuses_unbound_since = \
         CASE WHEN $2 = 1 THEN NULL ELSE COALESCE(refuses_unbound_since, $3) END, managed_by = $5, resource_uris = $6 WHERE id = $4";
    MANAGED_SERVICE = "SELECT 1 AS known FROM services WHERE owner_issuer = $1 AND owner_subject = $2 AND deleted_at IS NULL \
         AND name = $3 AND managed_by = $4 AND id <> $5 LIMIT 1";
    /// The files of the previous owner do not declare the service any more, so it loses the label of these files, `managed_by`.
    SET_OWNER = "UPDATE services SET owner_issuer = $1, owner_subject = $2, managed_by = NULL WHERE id = $3";
    RELEASE_ROLES = "UPDATE roles SET managed_by = NULL WHERE service_id = $1 AND managed_by IS NOT NULL";
    RELEASE_WEBHOOKS = "UPDATE webhook_targets SET managed_by = NULL WHERE service_id = $1 AND managed_by IS NOT NULL";
    RELEASE_KEYS = "UPDATE service_keys SET managed_by = NULL WHERE service_id = $1 AND managed_by IS NOT NULL";
    /// A deleted service keeps its owner, because the weight of its feedback depends on the owner.
    MARK_DELETED = "UPDATE services SET deleted_at = $1, purge_at = $1, name = $2, \
         refuses_unbound_since = COALESCE(refuses_unbound_since, $1) WHERE id = $3 AND deleted_at IS NULL";
    FIND_SERVICE = concat!("SELECT ", columns!(), " FROM services WHERE id = $1");
    FIND_LIVE_SERVICE = concat!("SELECT ", columns!(), " FROM services WHERE id = $1 AND deleted_at IS NULL");
    LIST_SERVICES = concat!(
        "SELECT ", columns!(), " FROM services WHERE deleted_at IS NULL AND id < $1 ORDER BY id DESC LIMIT $2 + 0 OFFSET $3"
    );
    COUNT_SERVICES_BY_OWNER = "SELECT CAST(COUNT(*) AS BIGINT) AS total FROM (SELECT 1 AS one FROM services \
         WHERE owner_issuer = $1 AND owner_subject = $2 AND deleted_at IS NULL LIMIT $3 + 0) counted";
    LIST_SERVICES_BY_OWNER = concat!(
        "SELECT ", columns!(), " FROM services WHERE owner_issuer = $1 AND owner_subject = $2 \
         AND deleted_at IS NULL AND id < $3 ORDER BY id DESC LIMIT $4 + 0 OFFSET $5"
    );
    LOCK_AND_FIND = concat!(
        "UPDATE services SET name = name WHERE id = $1 AND deleted_at IS NULL RETURNING ", columns!()
    );
    INSERT_KEY = "INSERT INTO service_keys (id, service_id, name, scope, secret_hash, created_at, managed_by) \
         VALUES ($1, $2, $3, $4, $5, $6, $7)";
    MANAGED_KEY = "SELECT 1 AS known FROM service_keys WHERE service_id = $1 AND revoked_at IS NULL AND name = $2 \
         AND managed_by = $3 LIMIT 1";
    FIND_KEY = concat!(
        "SELECT ", key_columns_from!(), " WHERE k.id = $1 AND k.revoked_at IS NULL AND s.deleted_at IS NULL"
    );
    /// Finds a key only if it was valid until the deletion of its service, which revokes all valid keys with the same time.
    FIND_KEY_OF_DELETED_SERVICE = concat!(
        "SELECT ", key_columns_from!(), " WHERE k.id = $1 AND k.revoked_at = s.deleted_at"
    );
    COUNT_KEYS = "SELECT CAST(COUNT(*) AS BIGINT) AS total FROM (SELECT 1 AS one FROM service_keys WHERE service_id = $1 \
         LIMIT $2 + 0) counted";
    LIST_KEYS = concat!(
        "SELECT ", key_columns_from!(), " WHERE k.service_id = $1 AND k.id < $2 ORDER BY k.id DESC LIMIT $3 + 0 OFFSET $4"
    );
    REVOKE_KEY = "UPDATE service_keys SET revoked_at = $1 WHERE id = $2 AND service_id = $3 AND revoked_at IS NULL";
    REVOKE_ALL_KEYS = "UPDATE service_keys SET revoked_at = $1 WHERE service_id = $2 AND revoked_at IS NULL";
    /// Keeps the `$2` API keys that were revoked last.
    DELETE_OLDEST_REVOKED_KEYS = "DELETE FROM service_keys WHERE id IN (SELECT id FROM service_keys WHERE service_id = $1 \
         AND revoked_at IS NOT NULL ORDER BY revoked_at DESC, id DESC LIMIT $3 + 0 OFFSET $2) AND revoked_at IS NOT NULL";
    HAS_KEY = "SELECT 1 AS known FROM service_keys WHERE id = $1 AND service_id = $2";
}

row_list_statements! { ROW_LISTS:
    /// Selects the API keys in the list that are valid.
    FIND_VALID_KEYS = "SELECT k.id FROM service_keys k JOIN services s ON s.id = k.service_id \
         WHERE k.revoked_at IS NULL AND s.deleted_at IS NULL AND k.id IN ({$1})";
}

pub async fn insert(conn: &mut Conn, service: &Service) -> Result<(), StoreError> {
    let parameters = params![
        service.id,
        service.owner.issuer,
        service.owner.subject,
        service.name,
        (!service.accepts_unbound).then_some(service.created_at),
        service.managed_by,
        service.created_at,
        service.deleted_at,
        resource_uris_text(service),
    ];
    conn.apply(INSERT_SERVICE, parameters).await
}

/// Whether the owner has another service with the same name and `managed_by`. The caller must hold the lock on the owner.
pub async fn has_managed_duplicate(conn: &mut Conn, service: &Service) -> Result<bool, StoreError> {
    let Some(managed_by) = &service.managed_by else { return Ok(false) };
    let Owner { issuer, subject } = &service.owner;
    conn.has_row(MANAGED_SERVICE, params![issuer, subject, service.name, managed_by, service.id]).await
}

/// Updates the name of a service, its setting for unbound tokens, its `managed_by`, and its resource URIs.
pub async fn update(conn: &mut Conn, service: &Service, now: Timestamp) -> Result<(), StoreError> {
    let Service { id, name, accepts_unbound, managed_by, .. } = service;
    conn.apply(UPDATE_SERVICE, params![name, accepts_unbound, now, id, managed_by, resource_uris_text(service)]).await
}

/// Sets the owner of a service, and removes the `managed_by` of the service, its roles, webhooks and API keys: only files of the
/// previous owner declare them.
pub async fn set_owner(conn: &mut Conn, id: ServiceId, owner: &Owner) -> Result<(), StoreError> {
    conn.must_change_row(SET_OWNER, "set_owner", params![owner.issuer, owner.subject, id]).await?;
    conn.apply(RELEASE_ROLES, params![id]).await?;
    conn.apply(RELEASE_WEBHOOKS, params![id]).await?;
    conn.apply(RELEASE_KEYS, params![id]).await
}

/// Marks a service as deleted, erases its name, and queues the removal of the rows that depend on it. Returns false if there is
/// no such service.
pub async fn mark_deleted(conn: &mut Conn, id: ServiceId, now: Timestamp) -> Result<bool, StoreError> {
    conn.changes_row(MARK_DELETED, params![now, DELETED_NAME, id]).await
}

/// Finds a service that is not deleted.
pub async fn find_live(conn: &mut Conn, id: ServiceId) -> Result<Option<Service>, StoreError> {
    conn.find_row(FIND_LIVE_SERVICE, params![id], service_from_row).await
}

/// Finds a service by id, deleted or not. Operations must use [`find_live`], except to show what remains of a deleted service.
pub async fn find(conn: &mut Conn, id: ServiceId) -> Result<Option<Service>, StoreError> {
    conn.find_row(FIND_SERVICE, params![id], service_from_row).await
}

/// Lists the services that are not deleted, of one owner or of all, newest first. Ids sort by creation time.
pub async fn list(
    conn: &mut Conn,
    owner: Option<&Owner>,
    page: Page<ServiceId>,
) -> Result<ListPage<Service, ServiceId>, StoreError> {
    let before = page.after.unwrap_or(ServiceId::from_bits(u128::MAX));
    let (total, sql, parameters) = match owner {
        None => {
            let total = ItemCount::exact(totals::find(conn, Total::Services).await?);
            (total, LIST_SERVICES, Vec::from(params![before]))
        }
        Some(Owner { issuer, subject }) => {
            let total = conn.count_items(COUNT_SERVICES_BY_OWNER, params![issuer, subject]).await?;
            (total, LIST_SERVICES_BY_OWNER, Vec::from(params![issuer, subject, before]))
        }
    };
    conn.list_page(sql, parameters, &page, total, service_from_row, |service| service.id).await
}

/// Locks the row of a service until the transaction ends. Returns `None` if there is no such service, or if it is deleted.
pub async fn lock(conn: &mut Conn, id: ServiceId) -> Result<Option<Service>, StoreError> {
    conn.find_row(LOCK_AND_FIND, params![id], service_from_row).await
}

pub async fn insert_key(conn: &mut Conn, key: &ServiceKey) -> Result<(), StoreError> {
    let ServiceKey { id, service, owner: _, name, scope, managed_by, secret, created_at, revoked_at: _ } = key;
    conn.apply(INSERT_KEY, params![id, service, name, scope, secret, created_at, managed_by]).await
}

/// Whether a service has a valid API key with this name and `managed_by`. The caller must hold the lock on the service.
pub async fn has_managed_key(
    conn: &mut Conn,
    service: ServiceId,
    name: &DisplayName,
    managed_by: &ManagedBy,
) -> Result<bool, StoreError> {
    conn.has_row(MANAGED_KEY, params![service, name, managed_by]).await
}

/// Finds an API key by id. Returns `None` if the key is revoked or its service is deleted.
pub async fn find_key(conn: &mut Conn, id: ApiKeyId) -> Result<Option<ServiceKey>, StoreError> {
    conn.find_row(FIND_KEY, params![id], key_from_row).await
}

/// Returns which API keys are valid: they are not revoked, and their services are not deleted.
pub async fn find_valid_keys(
    conn: &mut Conn,
    ids: impl IntoIterator<Item = ApiKeyId>,
) -> Result<HashSet<ApiKeyId>, StoreError> {
    let ids = ids.into_iter().map(|id| params![id]);
    FIND_VALID_KEYS.list_rows(conn, &[], ids, |row| row::parse(row, "id")).await
}

/// Finds the API key of a credential. Returns `None` for an unknown id, a wrong secret and a revoked key.
pub async fn find_key_by_credential(
    conn: &mut Conn,
    credential: &Credential<ApiKeyId>,
) -> Result<Option<ServiceKey>, StoreError> {
    Ok(find_key(conn, credential.id()).await?.filter(|key| key.secret.matches(credential)))
}

/// Finds the API key of a credential that was valid until its service was deleted. With it, a client may only learn of the deletion.
pub async fn find_key_of_deleted_service(
    conn: &mut Conn,
    credential: &Credential<ApiKeyId>,
) -> Result<Option<ServiceKey>, StoreError> {
    let key = conn.find_row(FIND_KEY_OF_DELETED_SERVICE, params![credential.id()], key_from_row).await?;
    Ok(key.filter(|key| key.secret.matches(credential)))
}

/// Lists the API keys of a service, including revoked keys, newest first.
pub async fn list_keys(
    conn: &mut Conn,
    service: ServiceId,
    page: Page<ApiKeyId>,
) -> Result<ListPage<ServiceKey, ApiKeyId>, StoreError> {
    let total = conn.count_items(COUNT_KEYS, params![service]).await?;
    let before = page.after.unwrap_or(ApiKeyId::from_bits(u128::MAX));
    conn.list_page(LIST_KEYS, params![service, before], &page, total, key_from_row, |key| key.id).await
}

/// Revokes an API key of a service. Returns false if the key does not exist or is already revoked.
pub async fn revoke_key(conn: &mut Conn, service: ServiceId, id: ApiKeyId, now: Timestamp) -> Result<bool, StoreError> {
    conn.changes_row(REVOKE_KEY, params![now, id, service]).await
}

/// Revokes all API keys of a service. Returns the number of keys that were not revoked before.
pub async fn revoke_all_keys(conn: &mut Conn, service: ServiceId, now: Timestamp) -> Result<u64, StoreError> {
    conn.count_changes(REVOKE_ALL_KEYS, params![now, service]).await
}

/// Deletes up to `limit` revoked API keys of a service, except the `kept` that were revoked last.
pub async fn delete_oldest_revoked_keys(
    conn: &mut Conn,
    service: ServiceId,
    kept: i64,
    limit: i64,
) -> Result<(), StoreError> {
    conn.apply(DELETE_OLDEST_REVOKED_KEYS, params![service, kept, limit]).await
}

/// Whether a service has an API key with this id, revoked or not.
pub async fn has_key(conn: &mut Conn, service: ServiceId, id: ApiKeyId) -> Result<bool, StoreError> {
    conn.has_row(HAS_KEY, params![id, service]).await
}

fn resource_uris_text(service: &Service) -> Option<String> {
    (!service.resource_uris.is_empty()).then(|| service.resource_uris.to_string())
}

fn service_from_row(row: &AnyRow) -> Result<Service, StoreError> {
    Ok(Service {
        id: row::parse(row, "id")?,
        owner: owner_from_row(row)?.ok_or(StoreError::Corrupt("owner_issuer"))?,
        name: row::convert(row, "name")?,
        accepts_unbound: row::optional_timestamp(row, "refuses_unbound_since")?.is_none(),
        resource_uris: row::convert_optional(row, "resource_uris")?.unwrap_or_default(),
        managed_by: row::convert_optional(row, "managed_by")?,
        created_at: row::timestamp(row, "created_at")?,
        deleted_at: row::optional_timestamp(row, "deleted_at")?,
    })
}

fn key_from_row(row: &AnyRow) -> Result<ServiceKey, StoreError> {
    let scope: String = row::get(row, "scope")?;
    Ok(ServiceKey {
        id: row::parse(row, "id")?,
        service: row::parse(row, "service_id")?,
        owner: owner_from_row(row)?.ok_or(StoreError::Corrupt("owner_issuer"))?,
        name: row::convert(row, "name")?,
        scope: KeyScope::parse(&scope).ok_or(StoreError::Corrupt("scope"))?,
        managed_by: row::convert_optional(row, "managed_by")?,
        secret: SecretHash::from_store(row::get(row, "secret_hash")?),
        created_at: row::timestamp(row, "created_at")?,
        revoked_at: row::optional_timestamp(row, "revoked_at")?,
    })
}
