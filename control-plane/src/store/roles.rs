//! The table of roles.

use super::{Conn, StoreError, row, statements::statements};
use crate::domain::role::Role;
use countersign_identity::{Revision, RoleDefinition, RoleId, ServiceId};
use sqlx::any::AnyRow;

macro_rules! columns {
    () => {
        "id, service_id, name, description, permissions, made_at_revision, created_at"
    };
}

/// The condition that a service is not deleted. Housekeeping removes the roles of a deleted service later.
macro_rules! is_live {
    ($service:literal) => {
        concat!("EXISTS (SELECT 1 FROM services s WHERE s.id = ", $service, " AND s.deleted_at IS NULL)")
    };
}

statements! { STATEMENTS:
    INSERT_ROLE = concat!(
        "INSERT INTO roles (", columns!(), ") VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (service_id, name) DO NOTHING"
    );
    LIST_ROLES = concat!(
        "SELECT ", columns!(), " FROM roles WHERE service_id = $1 AND ", is_live!("$1"), " ORDER BY created_at, id"
    );
    FIND_ROLE = concat!(
        "SELECT ", columns!(), " FROM roles WHERE id = $1 AND service_id = $2 AND ", is_live!("$2")
    );
    UPDATE_ROLE = "UPDATE roles SET permissions = $1, description = $2 WHERE id = $3";
    DELETE_ROLE = "DELETE FROM roles WHERE id = $1 AND service_id = $2";
}

/// Inserts a new role. Returns false if the service already has a role with this name.
pub async fn insert(conn: &mut Conn, role: &Role) -> Result<bool, StoreError> {
    let result = sqlx::query(INSERT_ROLE)
        .bind(role.definition.id.to_string())
        .bind(role.service.to_string())
        .bind(role.definition.name.as_str())
        .bind(role.description.as_str())
        .bind(permissions_to_json(role)?)
        .bind(role.definition.created_revision.number())
        .bind(role.created_at.micros())
        .execute(conn)
        .await?;
    Ok(result.rows_affected() == 1)
}

/// Lists all roles of a service, oldest first; none if the service is deleted.
pub async fn list(conn: &mut Conn, service: ServiceId) -> Result<Vec<Role>, StoreError> {
    sqlx::query(LIST_ROLES).bind(service.to_string()).fetch_all(conn).await?.iter().map(role_from_row).collect()
}

/// Finds a role by id. Returns `None` if the role belongs to another service, or if the service is deleted.
pub async fn find(conn: &mut Conn, service: ServiceId, id: RoleId) -> Result<Option<Role>, StoreError> {
    let row = sqlx::query(FIND_ROLE).bind(id.to_string()).bind(service.to_string()).fetch_optional(conn).await?;
    row.as_ref().map(role_from_row).transpose()
}

/// Updates the permissions and the description. The role must exist.
pub async fn update(conn: &mut Conn, role: &Role) -> Result<(), StoreError> {
    let query = sqlx::query(UPDATE_ROLE)
        .bind(permissions_to_json(role)?)
        .bind(role.description.as_str())
        .bind(role.definition.id.to_string());
    if query.execute(conn).await?.rows_affected() == 1 {
        Ok(())
    } else {
        Err(StoreError::UnexpectedRowCount("update_role"))
    }
}

/// Deletes a role that has no assignments. Returns false if the service has no such role.
pub async fn delete(conn: &mut Conn, service: ServiceId, id: RoleId) -> Result<bool, StoreError> {
    let query = sqlx::query(DELETE_ROLE).bind(id.to_string()).bind(service.to_string());
    Ok(query.execute(conn).await?.rows_affected() == 1)
}

fn permissions_to_json(role: &Role) -> Result<String, StoreError> {
    serde_json::to_string(&role.definition.permissions).map_err(|_| StoreError::Corrupt("permissions"))
}

fn role_from_row(row: &AnyRow) -> Result<Role, StoreError> {
    let permissions: String = row::get(row, "permissions")?;
    Ok(Role {
        definition: RoleDefinition {
            id: row::parse(row, "id")?,
            name: row::convert(row, "name")?,
            permissions: serde_json::from_str(&permissions).map_err(|_| StoreError::Corrupt("permissions"))?,
            created_revision: Revision::new(row::get(row, "made_at_revision")?),
        },
        service: row::parse(row, "service_id")?,
        description: row::convert(row, "description")?,
        created_at: row::timestamp(row, "created_at")?,
    })
}
