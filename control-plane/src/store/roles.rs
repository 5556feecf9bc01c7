//! The roles that services define.

use super::{Conn, StoreError, row};
use crate::domain::role::Role;
use countersign_identity::{Revision, RoleDefinition, RoleId, ServiceId};
use sqlx::any::AnyRow;

const COLUMNS: &str = "id, service_id, name, description, permissions, made_at_revision, created_at";

/// Inserts a new role; false if the service has one of that name.
pub async fn insert(conn: &mut Conn, role: &Role) -> Result<bool, StoreError> {
    let done = sqlx::query(sqlx::AssertSqlSafe(format!(
        "INSERT INTO roles ({COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (service_id, name) DO NOTHING"
    )))
    .bind(role.definition.id.to_string())
    .bind(role.service.to_string())
    .bind(role.definition.name.as_str())
    .bind(role.description.as_str())
    .bind(permissions_text(role)?)
    .bind(role.definition.created_revision.number())
    .bind(role.created_at.micros())
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// All roles of a service, oldest first.
pub async fn of_service(conn: &mut Conn, service: ServiceId) -> Result<Vec<Role>, StoreError> {
    let sql = sqlx::AssertSqlSafe(format!("SELECT {COLUMNS} FROM roles WHERE service_id = $1 ORDER BY created_at, id"));
    sqlx::query(sql).bind(service.to_string()).fetch_all(conn).await?.iter().map(read).collect()
}

/// A role, if it is one of this service.
pub async fn find(conn: &mut Conn, service: ServiceId, id: RoleId) -> Result<Option<Role>, StoreError> {
    let sql = sqlx::AssertSqlSafe(format!("SELECT {COLUMNS} FROM roles WHERE id = $1 AND service_id = $2"));
    let found = sqlx::query(sql).bind(id.to_string()).bind(service.to_string()).fetch_optional(conn).await?;
    found.as_ref().map(read).transpose()
}

/// Keeps what a role permits and what is said of it.
pub async fn update(conn: &mut Conn, role: &Role) -> Result<(), StoreError> {
    let query = sqlx::query("UPDATE roles SET permissions = $1, description = $2 WHERE id = $3")
        .bind(permissions_text(role)?)
        .bind(role.description.as_str())
        .bind(role.definition.id.to_string());
    if query.execute(conn).await?.rows_affected() == 1 { Ok(()) } else { Err(StoreError::Rows("update_role")) }
}

/// Deletes a role that nobody holds any more; false if it is none of this service.
pub async fn delete(conn: &mut Conn, service: ServiceId, id: RoleId) -> Result<bool, StoreError> {
    let sql = "DELETE FROM roles WHERE id = $1 AND service_id = $2";
    let query = sqlx::query(sql).bind(id.to_string()).bind(service.to_string());
    Ok(query.execute(conn).await?.rows_affected() == 1)
}

fn permissions_text(role: &Role) -> Result<String, StoreError> {
    serde_json::to_string(&role.definition.permissions).map_err(|_| StoreError::Corrupt("permissions"))
}

fn read(found: &AnyRow) -> Result<Role, StoreError> {
    let permissions: String = row::get(found, "permissions")?;
    Ok(Role {
        definition: RoleDefinition {
            id: row::parse(found, "id")?,
            name: row::convert(found, "name")?,
            permissions: serde_json::from_str(&permissions).map_err(|_| StoreError::Corrupt("permissions"))?,
            created_revision: Revision::new(row::get(found, "made_at_revision")?),
        },
        service: row::parse(found, "service_id")?,
        description: row::convert(found, "description")?,
        created_at: row::instant(found, "created_at")?,
    })
}
