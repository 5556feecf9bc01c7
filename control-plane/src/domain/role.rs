//! A role, who holds it, and the bounds that keep an identity small enough for headers.

use super::text::Description;
use countersign_identity::{AgentId, Permission, RoleDefinition, RoleId, RoleName, ServiceId, Timestamp};
use std::collections::BTreeSet;

/// Roles of one service at the most.
pub const MAX_ROLES: usize = 256;

/// Bytes of all distinct permission names of one service, joined by commas, at the most.
pub const MAX_PERMISSION_BYTES: usize = 4096;

/// Bytes of all role names that one agent holds at one service, joined by commas, at the most.
pub const MAX_HELD_BYTES: usize = 2048;

/// What a service asks for.
#[derive(Debug, Clone)]
pub struct RoleRequest {
    /// Its name.
    pub name: RoleName,
    /// What it is for.
    pub description: Description,
    /// What it permits.
    pub permissions: Vec<Permission>,
}

/// A role as its service made it.
#[derive(Debug, Clone)]
pub struct Role {
    /// Name, permissions and the revision at which it was made.
    pub definition: RoleDefinition,
    /// The service that made it.
    pub service: ServiceId,
    /// What it is for.
    pub description: Description,
    /// When it was made.
    pub created_at: Timestamp,
}

/// That an agent holds a role.
#[derive(Debug, Clone, Copy)]
pub struct Assignment {
    /// Who holds it.
    pub agent: AgentId,
    /// What is held.
    pub role: RoleId,
    /// Where.
    pub service: ServiceId,
    /// Since when.
    pub assigned_at: Timestamp,
    /// The second from which it is no longer held.
    pub expires_at: Option<Timestamp>,
}

/// What would make an identity too large.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TooMuch {
    /// See [`MAX_ROLES`].
    #[error("a service has at most 256 roles")]
    Roles,
    /// See [`MAX_PERMISSION_BYTES`].
    #[error("all permission names of a service together have at most 4096 bytes")]
    Permissions,
    /// See [`MAX_HELD_BYTES`].
    #[error("all role names of one agent together have at most 2048 bytes")]
    Held,
}

/// Whether one more role with these permissions fits beside those that a service has.
pub fn fits_service(existing: &[Role], permissions: &[Permission]) -> Result<(), TooMuch> {
    if existing.len() >= MAX_ROLES {
        return Err(TooMuch::Roles);
    }
    let old = existing.iter().flat_map(|role| &role.definition.permissions);
    let all: BTreeSet<_> = old.chain(permissions).map(Permission::as_str).collect();
    if joined_len(all.into_iter()) > MAX_PERMISSION_BYTES { Err(TooMuch::Permissions) } else { Ok(()) }
}

/// Whether one more role name fits beside those that an agent holds at a service.
pub fn fits_agent<'a>(held: impl Iterator<Item = &'a RoleName>) -> Result<(), TooMuch> {
    if joined_len(held.map(RoleName::as_str)) > MAX_HELD_BYTES { Err(TooMuch::Held) } else { Ok(()) }
}

fn joined_len<'a>(names: impl Iterator<Item = &'a str>) -> usize {
    names.map(|name| name.len() + 1).sum::<usize>().saturating_sub(1)
}
