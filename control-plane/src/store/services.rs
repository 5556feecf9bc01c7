//! Services and their API keys.

use super::{Conn, StoreError, agents::read_owner, row};
use crate::domain::{
    agent::Owner,
    credential::{Credential, SecretHash},
    page::{Listed, Page},
    service::{KeyScope, Service, ServiceKey},
};
use countersign_identity::{ApiKeyId, ServiceId, Timestamp};
use sqlx::any::AnyRow;

const COLUMNS: &str = "id, owner_issuer, owner_subject, name, refuses_unbound_since, created_at";
const KEY_COLUMNS: &str = "id, service_id, name, scope, secret_hash, created_at, revoked_at";

/// Inserts a new service.
pub async fn insert(conn: &mut Conn, service: &Service) -> Result<(), StoreError> {
    let sql = sqlx::AssertSqlSafe(format!("INSERT INTO services ({COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6)"));
    sqlx::query(sql)
        .bind(service.id.to_string())
        .bind(&service.owner.issuer)
        .bind(&service.owner.subject)
        .bind(service.name.as_str())
        .bind((!service.accepts_unbound).then_some(service.created_at.micros()))
        .bind(service.created_at.micros())
        .execute(conn)
        .await?;
    Ok(())
}

/// Changes what people call a service, and whether it accepts tokens that are bound to none.
pub async fn update(conn: &mut Conn, service: &Service, now: Timestamp) -> Result<(), StoreError> {
    let Service { id, owner: _, name, accepts_unbound, created_at: _ } = service;
    // The instant since when stays that of the first refusal.
    let sql = "UPDATE services SET name = $1, refuses_unbound_since = \
               CASE WHEN $2 = 1 THEN NULL ELSE COALESCE(refuses_unbound_since, $3) END WHERE id = $4";
    let query = sqlx::query(sql).bind(name.as_str()).bind(i64::from(*accepts_unbound)).bind(now.micros());
    query.bind(id.to_string()).execute(conn).await?;
    Ok(())
}

/// The service with this id.
pub async fn find(conn: &mut Conn, id: ServiceId) -> Result<Option<Service>, StoreError> {
    let sql = sqlx::AssertSqlSafe(format!("SELECT {COLUMNS} FROM services WHERE id = $1"));
    sqlx::query(sql).bind(id.to_string()).fetch_optional(conn).await?.as_ref().map(read_service).transpose()
}

/// The services of a person, or of everybody; newest first, since ids sort by their making.
pub async fn list(conn: &mut Conn, owner: Option<&Owner>, page: Page) -> Result<Listed<Service>, StoreError> {
    let whose = if owner.is_some() { "owner_issuer = $1 AND owner_subject = $2" } else { "$1 = '' AND $2 = ''" };
    let (issuer, subject) = owner.map_or(("", ""), |owner| (&owner.issuer, &owner.subject));
    let count = sqlx::AssertSqlSafe(format!("SELECT CAST(COUNT(*) AS BIGINT) AS total FROM services WHERE {whose}"));
    let total = row::total(&sqlx::query(count).bind(issuer).bind(subject).fetch_one(&mut *conn).await?)?;
    let sql = format!("SELECT {COLUMNS} FROM services WHERE {whose} ORDER BY id DESC LIMIT $3 OFFSET $4");
    let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(issuer).bind(subject).bind(page.limit).bind(page.offset);
    let items = query.fetch_all(conn).await?.iter().map(read_service).collect::<Result<_, _>>()?;
    Ok(Listed { items, total })
}

/// How many services there are.
pub async fn count(conn: &mut Conn) -> Result<i64, StoreError> {
    row::total(&sqlx::query("SELECT CAST(COUNT(*) AS BIGINT) AS total FROM services").fetch_one(conn).await?)
}

/// Locks a service's row until the transaction ends; false if there is no such service.
pub async fn lock(conn: &mut Conn, id: ServiceId) -> Result<bool, StoreError> {
    let sql = "UPDATE services SET name = name WHERE id = $1";
    Ok(sqlx::query(sql).bind(id.to_string()).execute(conn).await?.rows_affected() == 1)
}

/// Inserts a new API key.
pub async fn insert_key(conn: &mut Conn, key: &ServiceKey) -> Result<(), StoreError> {
    sqlx::query("INSERT INTO service_keys (id, service_id, name, scope, secret_hash, created_at) VALUES ($1, $2, $3, $4, $5, $6)")
        .bind(key.id.to_string())
        .bind(key.service.to_string())
        .bind(key.name.as_str())
        .bind(key.scope.as_str())
        .bind(key.secret.to_store())
        .bind(key.created_at.micros())
        .execute(conn)
        .await?;
    Ok(())
}

/// The API key with this id, unless it was revoked.
pub async fn find_key(conn: &mut Conn, id: ApiKeyId) -> Result<Option<ServiceKey>, StoreError> {
    let sql =
        sqlx::AssertSqlSafe(format!("SELECT {KEY_COLUMNS} FROM service_keys WHERE id = $1 AND revoked_at IS NULL"));
    sqlx::query(sql).bind(id.to_string()).fetch_optional(conn).await?.as_ref().map(read_key).transpose()
}

/// The API key that a credential is, unless it was revoked. Unknown and wrong look the same.
pub async fn find_presented(
    conn: &mut Conn,
    presented: &Credential<ApiKeyId>,
) -> Result<Option<ServiceKey>, StoreError> {
    Ok(find_key(conn, presented.id()).await?.filter(|key| key.secret.is_of(presented)))
}

/// The API keys of a service, also those that were revoked; newest first.
pub async fn list_keys(conn: &mut Conn, service: ServiceId, page: Page) -> Result<Listed<ServiceKey>, StoreError> {
    let count = "SELECT CAST(COUNT(*) AS BIGINT) AS total FROM service_keys WHERE service_id = $1";
    let total = row::total(&sqlx::query(count).bind(service.to_string()).fetch_one(&mut *conn).await?)?;
    let sql = sqlx::AssertSqlSafe(format!(
        "SELECT {KEY_COLUMNS} FROM service_keys WHERE service_id = $1 ORDER BY id DESC LIMIT $2 OFFSET $3"
    ));
    let query = sqlx::query(sql).bind(service.to_string()).bind(page.limit).bind(page.offset);
    let items = query.fetch_all(conn).await?.iter().map(read_key).collect::<Result<_, _>>()?;
    Ok(Listed { items, total })
}

/// Revokes an API key of a service; false if there is none, or it was revoked before.
pub async fn revoke_key(conn: &mut Conn, service: ServiceId, id: ApiKeyId, now: Timestamp) -> Result<bool, StoreError> {
    let sql = "UPDATE service_keys SET revoked_at = $1 WHERE id = $2 AND service_id = $3 AND revoked_at IS NULL";
    let query = sqlx::query(sql).bind(now.micros()).bind(id.to_string()).bind(service.to_string());
    Ok(query.execute(conn).await?.rows_affected() == 1)
}

/// Whether a service has, or had, the API key with this id.
pub async fn has_key(conn: &mut Conn, service: ServiceId, id: ApiKeyId) -> Result<bool, StoreError> {
    let query = sqlx::query("SELECT 1 AS known FROM service_keys WHERE id = $1 AND service_id = $2");
    Ok(query.bind(id.to_string()).bind(service.to_string()).fetch_optional(conn).await?.is_some())
}

fn read_service(found: &AnyRow) -> Result<Service, StoreError> {
    Ok(Service {
        id: row::parse(found, "id")?,
        owner: read_owner(found)?.ok_or(StoreError::Corrupt("owner_issuer"))?,
        name: row::convert(found, "name")?,
        accepts_unbound: row::optional_instant(found, "refuses_unbound_since")?.is_none(),
        created_at: row::instant(found, "created_at")?,
    })
}

fn read_key(found: &AnyRow) -> Result<ServiceKey, StoreError> {
    let scope: String = row::get(found, "scope")?;
    Ok(ServiceKey {
        id: row::parse(found, "id")?,
        service: row::parse(found, "service_id")?,
        name: row::convert(found, "name")?,
        scope: KeyScope::parse(&scope).ok_or(StoreError::Corrupt("scope"))?,
        secret: SecretHash::from_store(row::get(found, "secret_hash")?),
        created_at: row::instant(found, "created_at")?,
        revoked_at: row::optional_instant(found, "revoked_at")?,
    })
}
