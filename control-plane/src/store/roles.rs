//! The table of roles.

use super::{Conn, StoreError, query::params, row, statements::statements};
use crate::domain::role::Role;
use countersign_identity::{RoleDefinition, RoleId, RoleName, ServiceId, Timestamp};
use sqlx::any::AnyRow;

macro_rules! columns {
    () => {
        "id, service_id, name, description, permissions, created_revision, managed_by, created_at"
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
        "INSERT INTO roles (", columns!(), ") VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (service_id, name) DO NOTHING"
    );
    LIST_ROLES = concat!(
        "SELECT ", columns!(), " FROM roles WHERE service_id = $1 AND deleted_at IS NULL AND ", is_live!("$1"),
        " ORDER BY created_at, id"
    );
    FIND_ROLE = concat!(
        "SELECT ", columns!(), " FROM roles WHERE id = $1 AND service_id = $2 AND deleted_at IS NULL AND ", is_live!("$2")
    );
    FIND_FATE = "SELECT COALESCE(r.deleted_name, r.name) AS name, r.deleted_at, s.deleted_at AS service_deleted_at \
         FROM roles r JOIN services s ON s.id = r.service_id WHERE r.id = $1";
    UPDATE_ROLE = "UPDATE roles SET permissions = $1, description = $2, managed_by = $4 WHERE id = $3";
    /// Renames the row, so that a new role can have the name at once.
    MARK_DELETED = "UPDATE roles SET deleted_at = $1, deleted_name = name, name = $2, permissions = '[]' \
         WHERE id = $3 AND service_id = $4 AND deleted_at IS NULL";
}

/// Inserts a new role. Returns false if the service already has a role with this name.
pub async fn insert(conn: &mut Conn, role: &Role) -> Result<bool, StoreError> {
    let Role { definition, service, description, managed_by, created_at } = role;
    let RoleDefinition { id, name, permissions: _, created_revision } = definition;
    let permissions = permissions_to_json(role)?;
    let parameters = params![id, service, name, description, permissions, created_revision, managed_by, created_at];
    conn.changes_row(INSERT_ROLE, parameters).await
}

/// Lists all roles of a service, oldest first; none if the service is deleted.
pub async fn list(conn: &mut Conn, service: ServiceId) -> Result<Vec<Role>, StoreError> {
    conn.list_rows(LIST_ROLES, params![service], role_from_row).await
}

/// A role that an agent holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldRole {
    pub definition: RoleDefinition,
    /// When the assignment expires; `None` for no expiry.
    pub until: Option<Timestamp>,
}

/// Reads the columns of a role, and when its assignment expires.
pub(super) fn held_from_row(row: &AnyRow) -> Result<HeldRole, StoreError> {
    Ok(HeldRole { definition: definition_from_row(row)?, until: row::optional_timestamp(row, "expires_at")? })
}

/// Finds a role by id. Returns `None` if the role belongs to another service, or if the service is deleted.
pub async fn find(conn: &mut Conn, service: ServiceId, id: RoleId) -> Result<Option<Role>, StoreError> {
    conn.find_row(FIND_ROLE, params![id, service], role_from_row).await
}

/// Updates the permissions, the description and `managed_by` of a role, which must exist.
pub async fn update(conn: &mut Conn, role: &Role) -> Result<(), StoreError> {
    let parameters = params![permissions_to_json(role)?, role.description, role.definition.id, role.managed_by];
    conn.must_change_row(UPDATE_ROLE, "update_role", parameters).await
}

/// Marks a role as deleted, and gives its row the name `name_after_deletion`, so that a new role can have its name. Background work removes
/// its assignments and then its row, see [`super::purge`]. Returns false if the service has no such role.
pub async fn mark_deleted(
    conn: &mut Conn,
    service: ServiceId,
    id: RoleId,
    name_after_deletion: &str,
    now: Timestamp,
) -> Result<bool, StoreError> {
    conn.changes_row(MARK_DELETED, params![now, name_after_deletion, id, service]).await
}

/// The name of a role, and whether and when the role or its service was deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleFate {
    /// The name of the role. If the role was deleted, the name that it had; another role may have this name now.
    pub name: RoleName,
    /// When the role was deleted; `None` if it is not.
    pub deleted_at: Option<Timestamp>,
    /// When the service of the role was deleted; `None` if it is not.
    pub service_deleted_at: Option<Timestamp>,
}

/// Finds the name of a role, deleted or not; `None` if no row of the role is left.
pub async fn find_fate(conn: &mut Conn, id: RoleId) -> Result<Option<RoleFate>, StoreError> {
    let fate_from_row = |row: &AnyRow| {
        Ok(RoleFate {
            name: row::convert(row, "name")?,
            deleted_at: row::optional_timestamp(row, "deleted_at")?,
            service_deleted_at: row::optional_timestamp(row, "service_deleted_at")?,
        })
    };
    conn.find_row(FIND_FATE, params![id], fate_from_row).await
}

fn permissions_to_json(role: &Role) -> Result<String, StoreError> {
    serde_json::to_string(&role.definition.permissions).map_err(|_| StoreError::Corrupt("permissions"))
}

fn definition_from_row(row: &AnyRow) -> Result<RoleDefinition, StoreError> {
    let permissions: String = row::get(row, "permissions")?;
    Ok(RoleDefinition {
        id: row::parse(row, "id")?,
        name: row::convert(row, "name")?,
        permissions: serde_json::from_str(&permissions).map_err(|_| StoreError::Corrupt("permissions"))?,
        created_revision: row::revision(row, "created_revision")?,
    })
}

fn role_from_row(row: &AnyRow) -> Result<Role, StoreError> {
    Ok(Role {
        definition: definition_from_row(row)?,
        service: row::parse(row, "service_id")?,
        description: row::convert(row, "description")?,
        managed_by: row::convert_optional(row, "managed_by")?,
        created_at: row::timestamp(row, "created_at")?,
    })
}
