//! The tables of services and their API keys.

use super::{Conn, StoreError, agents::owner_from_row, row, statements::statements, totals};
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

/// Replaces the name of a deleted service.
const DELETED_NAME: &str = "deleted";

/// The number of API keys that [`find_valid_keys`] reads at once: the parameters of its statement.
pub const KEYS_PER_CHECK: usize = 64;

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
    /// The column `refuses_unbound_since` keeps the time since which the service refuses unbound tokens.
    UPDATE_SERVICE = "UPDATE services SET name = $1, refuses_unbound_since = \
         CASE WHEN $2 = 1 THEN NULL ELSE COALESCE(refuses_unbound_since, $3) END, managed_by = $5, resource_uris = $6 WHERE id = $4";
    MANAGED_SERVICE = "SELECT 1 AS known FROM services WHERE owner_issuer = $1 AND owner_subject = $2 AND deleted_at IS NULL \
         AND name = $3 AND managed_by = $4 AND id <> $5 LIMIT 1";
    /// The files of the previous owner state nothing about the service of another.
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
    /// The keys with these ids that are valid. Unused parameters are empty.
    FIND_VALID_KEYS = "SELECT k.id FROM service_keys k JOIN services s ON s.id = k.service_id \
         WHERE k.revoked_at IS NULL AND s.deleted_at IS NULL AND k.id IN \
         ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, \
         $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27, $28, $29, $30, $31, $32, \
         $33, $34, $35, $36, $37, $38, $39, $40, $41, $42, $43, $44, $45, $46, $47, $48, \
         $49, $50, $51, $52, $53, $54, $55, $56, $57, $58, $59, $60, $61, $62, $63, $64)";
    /// The deletion of a service revokes its API keys at the time of the deletion.
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
    /// The revoked API keys of a service beyond the `$2` that were revoked last.
    DELETE_OLDEST_REVOKED_KEYS = "DELETE FROM service_keys WHERE id IN (SELECT id FROM service_keys WHERE service_id = $1 \
         AND revoked_at IS NOT NULL ORDER BY revoked_at DESC, id DESC LIMIT $3 + 0 OFFSET $2) AND revoked_at IS NOT NULL";
    HAS_KEY = "SELECT 1 AS known FROM service_keys WHERE id = $1 AND service_id = $2";
}

/// Inserts a new service.
pub async fn insert(conn: &mut Conn, service: &Service) -> Result<(), StoreError> {
    sqlx::query(INSERT_SERVICE)
        .bind(service.id.to_string())
        .bind(&service.owner.issuer)
        .bind(&service.owner.subject)
        .bind(service.name.as_str())
        .bind((!service.accepts_unbound).then_some(service.created_at.micros()))
        .bind(service.managed_by.as_ref().map(ManagedBy::as_str))
        .bind(service.created_at.micros())
        .bind(service.deleted_at.map(Timestamp::micros))
        .bind(resource_uris_text(service))
        .execute(conn)
        .await?;
    Ok(())
}

/// Whether the owner of a service has another one with the same name and the same `managed_by`. The caller must hold the lock on the
/// owner.
pub async fn has_managed_twin(conn: &mut Conn, service: &Service) -> Result<bool, StoreError> {
    let Some(managed_by) = &service.managed_by else { return Ok(false) };
    let query = sqlx::query(MANAGED_SERVICE).bind(&service.owner.issuer).bind(&service.owner.subject);
    let query = query.bind(service.name.as_str()).bind(managed_by.as_str()).bind(service.id.to_string());
    Ok(query.fetch_optional(conn).await?.is_some())
}

/// Updates the name of a service, its setting for unbound tokens, its `managed_by`, and its resource URIs.
pub async fn update(conn: &mut Conn, service: &Service, now: Timestamp) -> Result<(), StoreError> {
    let Service { id, name, accepts_unbound, managed_by, .. } = service;
    let query = sqlx::query(UPDATE_SERVICE).bind(name.as_str()).bind(i64::from(*accepts_unbound)).bind(now.micros());
    let query = query.bind(id.to_string()).bind(managed_by.as_ref().map(ManagedBy::as_str));
    query.bind(resource_uris_text(service)).execute(conn).await?;
    Ok(())
}

/// Sets the owner of a service. No files manage it and its roles, webhooks and API keys from then on.
pub async fn set_owner(conn: &mut Conn, id: ServiceId, owner: &Owner) -> Result<(), StoreError> {
    let query = sqlx::query(SET_OWNER).bind(&owner.issuer).bind(&owner.subject).bind(id.to_string());
    if query.execute(&mut *conn).await?.rows_affected() != 1 {
        return Err(StoreError::UnexpectedRowCount("set_owner"));
    }
    sqlx::query(RELEASE_ROLES).bind(id.to_string()).execute(&mut *conn).await?;
    sqlx::query(RELEASE_WEBHOOKS).bind(id.to_string()).execute(&mut *conn).await?;
    sqlx::query(RELEASE_KEYS).bind(id.to_string()).execute(conn).await?;
    Ok(())
}

/// Marks a service as deleted, erases its name, and queues the removal of the rows that depend on it. Returns false if there is
/// no such service.
pub async fn mark_deleted(conn: &mut Conn, id: ServiceId, now: Timestamp) -> Result<bool, StoreError> {
    let query = sqlx::query(MARK_DELETED).bind(now.micros()).bind(DELETED_NAME).bind(id.to_string());
    Ok(query.execute(conn).await?.rows_affected() == 1)
}

/// Finds a service that is not deleted.
pub async fn find_live(conn: &mut Conn, id: ServiceId) -> Result<Option<Service>, StoreError> {
    let row = sqlx::query(FIND_LIVE_SERVICE).bind(id.to_string()).fetch_optional(conn).await?;
    row.as_ref().map(service_from_row).transpose()
}

/// Finds a service by id, deleted or not. Operations must use [`find_live`], except to show what remains of a deleted service.
pub async fn find(conn: &mut Conn, id: ServiceId) -> Result<Option<Service>, StoreError> {
    sqlx::query(FIND_SERVICE)
        .bind(id.to_string())
        .fetch_optional(conn)
        .await?
        .as_ref()
        .map(service_from_row)
        .transpose()
}

/// Lists all services that are not deleted, or those of an owner, newest first (ids sort by creation time).
pub async fn list(
    conn: &mut Conn,
    owner: Option<&Owner>,
    page: Page<ServiceId>,
) -> Result<ListPage<Service, ServiceId>, StoreError> {
    let (total, query) = match owner {
        None => (ItemCount::exact(totals::find(conn, Total::Services).await?), sqlx::query(LIST_SERVICES)),
        Some(Owner { issuer, subject }) => {
            let count = sqlx::query(COUNT_SERVICES_BY_OWNER).bind(issuer).bind(subject).bind(row::ROWS_TO_COUNT);
            let total = row::item_count(&count.fetch_one(&mut *conn).await?)?;
            (total, sqlx::query(LIST_SERVICES_BY_OWNER).bind(issuer).bind(subject))
        }
    };
    let before = page.after.unwrap_or(ServiceId::from_bits(u128::MAX));
    let query = query.bind(before.to_string()).bind(page.items_to_read()).bind(page.items_to_skip());
    let items = query.fetch_all(conn).await?.iter().map(service_from_row).collect::<Result<_, _>>()?;
    Ok(ListPage::new(&page, items, total, |service: &Service| service.id, None))
}

/// Locks the row of a service until the transaction ends. Returns `None` if there is no such service, or if it is deleted.
pub async fn lock(conn: &mut Conn, id: ServiceId) -> Result<Option<Service>, StoreError> {
    let row = sqlx::query(LOCK_AND_FIND).bind(id.to_string()).fetch_optional(conn).await?;
    row.as_ref().map(service_from_row).transpose()
}

/// Inserts a new API key.
pub async fn insert_key(conn: &mut Conn, key: &ServiceKey) -> Result<(), StoreError> {
    sqlx::query(INSERT_KEY)
        .bind(key.id.to_string())
        .bind(key.service.to_string())
        .bind(key.name.as_str())
        .bind(key.scope.as_str())
        .bind(key.secret.to_store())
        .bind(key.created_at.micros())
        .bind(key.managed_by.as_ref().map(ManagedBy::as_str))
        .execute(conn)
        .await?;
    Ok(())
}

/// Whether a service has a valid API key with the same name and the same `managed_by`. The caller must hold the lock on the service.
pub async fn has_managed_key(
    conn: &mut Conn,
    service: ServiceId,
    name: &DisplayName,
    managed_by: &ManagedBy,
) -> Result<bool, StoreError> {
    let query = sqlx::query(MANAGED_KEY).bind(service.to_string()).bind(name.as_str()).bind(managed_by.as_str());
    Ok(query.fetch_optional(conn).await?.is_some())
}

/// Finds an API key by id. Returns `None` if the key is revoked or its service is deleted.
pub async fn find_key(conn: &mut Conn, id: ApiKeyId) -> Result<Option<ServiceKey>, StoreError> {
    sqlx::query(FIND_KEY).bind(id.to_string()).fetch_optional(conn).await?.as_ref().map(key_from_row).transpose()
}

/// Returns which of at most [`KEYS_PER_CHECK`] API keys are valid: they are not revoked, and their services are not deleted.
pub async fn find_valid_keys(conn: &mut Conn, ids: &[ApiKeyId]) -> Result<Vec<ApiKeyId>, StoreError> {
    let ids = ids.iter().map(ToString::to_string).chain(std::iter::repeat_with(String::new)).take(KEYS_PER_CHECK);
    let query = ids.fold(sqlx::query(FIND_VALID_KEYS), sqlx::query::Query::bind);
    query.fetch_all(conn).await?.iter().map(|row| row::parse(row, "id")).collect()
}

/// Finds the API key of a credential. Returns `None` for an unknown id, a wrong secret and a revoked key.
pub async fn find_key_by_credential(
    conn: &mut Conn,
    credential: &Credential<ApiKeyId>,
) -> Result<Option<ServiceKey>, StoreError> {
    Ok(find_key(conn, credential.id()).await?.filter(|key| key.secret.matches(credential)))
}

/// Finds the API key of a credential that was valid until its service was deleted. It allows nothing except to learn of the
/// deletion.
pub async fn find_key_of_deleted_service(
    conn: &mut Conn,
    credential: &Credential<ApiKeyId>,
) -> Result<Option<ServiceKey>, StoreError> {
    let row = sqlx::query(FIND_KEY_OF_DELETED_SERVICE).bind(credential.id().to_string()).fetch_optional(conn).await?;
    let key = row.as_ref().map(key_from_row).transpose()?;
    Ok(key.filter(|key| key.secret.matches(credential)))
}

/// Lists the API keys of a service, including revoked keys, newest first.
pub async fn list_keys(
    conn: &mut Conn,
    service: ServiceId,
    page: Page<ApiKeyId>,
) -> Result<ListPage<ServiceKey, ApiKeyId>, StoreError> {
    let count = sqlx::query(COUNT_KEYS).bind(service.to_string()).bind(row::ROWS_TO_COUNT);
    let total = row::item_count(&count.fetch_one(&mut *conn).await?)?;
    let before = page.after.unwrap_or(ApiKeyId::from_bits(u128::MAX));
    let query = sqlx::query(LIST_KEYS).bind(service.to_string()).bind(before.to_string());
    let rows = query.bind(page.items_to_read()).bind(page.items_to_skip()).fetch_all(conn).await?;
    let items = rows.iter().map(key_from_row).collect::<Result<_, _>>()?;
    Ok(ListPage::new(&page, items, total, |key: &ServiceKey| key.id, None))
}

/// Revokes an API key of a service. Returns false if the key does not exist or is already revoked.
pub async fn revoke_key(conn: &mut Conn, service: ServiceId, id: ApiKeyId, now: Timestamp) -> Result<bool, StoreError> {
    let query = sqlx::query(REVOKE_KEY).bind(now.micros()).bind(id.to_string()).bind(service.to_string());
    Ok(query.execute(conn).await?.rows_affected() == 1)
}

/// Revokes all API keys of a service. Returns the number of keys that were not revoked before.
pub async fn revoke_all_keys(conn: &mut Conn, service: ServiceId, now: Timestamp) -> Result<u64, StoreError> {
    let query = sqlx::query(REVOKE_ALL_KEYS).bind(now.micros()).bind(service.to_string());
    Ok(query.execute(conn).await?.rows_affected())
}

/// Deletes up to `limit` revoked API keys of a service, except the `kept` that were revoked last.
pub async fn delete_oldest_revoked_keys(
    conn: &mut Conn,
    service: ServiceId,
    kept: i64,
    limit: i64,
) -> Result<(), StoreError> {
    let query = sqlx::query(DELETE_OLDEST_REVOKED_KEYS).bind(service.to_string()).bind(kept).bind(limit);
    query.execute(conn).await?;
    Ok(())
}

/// Whether a service has an API key with this id, revoked or not.
pub async fn has_key(conn: &mut Conn, service: ServiceId, id: ApiKeyId) -> Result<bool, StoreError> {
    let query = sqlx::query(HAS_KEY).bind(id.to_string()).bind(service.to_string());
    Ok(query.fetch_optional(conn).await?.is_some())
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
