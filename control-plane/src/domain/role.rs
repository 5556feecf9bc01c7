//! Roles, role assignments, and the limits that keep an identity small enough for HTTP headers.

use super::text::{Description, ManagedBy};
use countersign_identity::{
    AgentId, Permission, RoleDefinition, RoleId, RoleName, ServiceId, Timestamp, identity_headers::join_encoded,
};
use std::collections::BTreeSet;

/// Maximum number of roles of a service.
pub const MAX_ROLES: usize = 256;

/// Maximum length of all distinct permission names of a service in a header, in bytes.
pub const MAX_PERMISSION_BYTES: usize = 4096;

/// Maximum length of the permission names of all roles of a service, joined by commas, in bytes. A name counts once for each role
/// that has it: when one role changes, every sync stream of the service receives the definitions of all roles.
pub const MAX_DEFINITION_BYTES: usize = 131_072;

/// Maximum length of all role names of an agent at one service in a header, in bytes.
pub const MAX_ROLE_NAME_BYTES: usize = 2048;

/// A role of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Role {
    /// The id, name and permissions of the role, and the revision at which it was created.
    pub definition: RoleDefinition,
    /// Service that defines the role.
    pub service: ServiceId,
    /// Description for human readers.
    pub description: Description,
    /// The label (`managedBy`) of the set of files that declares the role, if any.
    pub managed_by: Option<ManagedBy>,
    pub created_at: Timestamp,
}

/// The assignment of a role to an agent.
#[derive(Debug, Clone)]
pub struct Assignment {
    /// Agent that holds the role.
    pub agent: AgentId,
    /// Assigned role.
    pub role: RoleId,
    /// Service that defines the role.
    pub service: ServiceId,
    pub assigned_at: Timestamp,
    /// Time from which the agent no longer holds the role, in whole seconds; `None` if the assignment does not expire.
    pub expires_at: Option<Timestamp>,
    /// The label (`managedBy`) of the set of files that declares the assignment; `None` keeps the label of an existing assignment.
    pub managed_by: Option<ManagedBy>,
}

/// Error for a role or an assignment that would exceed a limit on the size of an identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IdentityTooLarge {
    /// See [`MAX_ROLES`].
    #[error("a service has at most 256 roles")]
    Roles,
    /// See [`MAX_PERMISSION_BYTES`].
    #[error("all permission names of a service together have at most 4096 bytes in a header, where `%` takes 3 bytes")]
    Permissions,
    /// See [`MAX_DEFINITION_BYTES`].
    #[error(
        "the permissions of all roles of a service together have at most 131072 bytes; a permission counts for each role that has it"
    )]
    Definitions,
    /// See [`MAX_ROLE_NAME_BYTES`].
    #[error(
        "all role names of one agent together have at most 2048 bytes in a header, where `%`, commas and each byte of a non-ASCII character take 3 bytes"
    )]
    RoleNames,
}

/// Checks that a service can have one more role with the given permissions.
pub fn check_service_limits(existing: &[Role], permissions: &[Permission]) -> Result<(), IdentityTooLarge> {
    if existing.len() >= MAX_ROLES {
        return Err(IdentityTooLarge::Roles);
    }
    let of_all_roles = existing.iter().flat_map(|role| &role.definition.permissions).chain(permissions);
    let names: BTreeSet<_> = of_all_roles.clone().map(Permission::as_str).collect();
    if join_encoded(names).len() > MAX_PERMISSION_BYTES {
        Err(IdentityTooLarge::Permissions)
    } else if comma_joined_len(of_all_roles.map(Permission::as_str)) > MAX_DEFINITION_BYTES {
        Err(IdentityTooLarge::Definitions)
    } else {
        Ok(())
    }
}

/// Checks that an agent can hold all roles in `roles` at one service.
pub fn check_agent_limits<'a>(roles: impl Iterator<Item = &'a RoleName>) -> Result<(), IdentityTooLarge> {
    if join_encoded(roles.map(RoleName::as_str)).len() > MAX_ROLE_NAME_BYTES {
        Err(IdentityTooLarge::RoleNames)
    } else {
        Ok(())
    }
}

/// A new name for the row of a deleted role, so that another role can have the old name at once. `unique` is an id that no row has.
pub fn name_of_deleted(unique: RoleId) -> String {
    format!("deleted-{unique}")
}

fn comma_joined_len<'a>(names: impl Iterator<Item = &'a str>) -> usize {
    names.map(|name| name.len() + 1).sum::<usize>().saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether an agent can hold roles with these names.
    fn can_hold(names: &[String]) -> bool {
        let names: Vec<_> = names.iter().map(|name| RoleName::try_from(name.as_str()).unwrap()).collect();
        check_agent_limits(names.iter()).is_ok()
    }

    /// Why a service cannot have a role with these permissions as its only role; `None` if it can.
    fn refusal(permissions: &[String]) -> Option<IdentityTooLarge> {
        let permissions: Vec<_> = permissions.iter().map(|name| Permission::try_from(name.as_str()).unwrap()).collect();
        check_service_limits(&[], &permissions).err()
    }

    #[test]
    fn role_names_count_as_a_header_contains_them() {
        // With its comma, each name has 64 bytes. The last name has no comma.
        let plain: Vec<_> = (0..32).map(|number| format!("{number:063}")).collect();
        assert!(can_hold(&plain));
        assert!(!can_hold(&[plain.as_slice(), &["r".to_owned()]].concat()));
        for (longest, bytes) in [("🤖", 768), ("é", 384), ("%", 192)].map(|(text, bytes)| (text.repeat(64), bytes)) {
            let fitting = (MAX_ROLE_NAME_BYTES + 1) / (bytes + 1);
            assert!(can_hold(&vec![longest.clone(); fitting]), "{longest}");
            assert!(!can_hold(&vec![longest.clone(); fitting + 1]), "{longest}");
        }
    }

    #[test]
    fn permissions_count_as_a_header_contains_them() {
        let permissions = |text: &str, count: usize| -> Vec<_> {
            (0..count).map(|number| format!("{number:02}{}", text.repeat(126))).collect()
        };
        assert_eq!(refusal(&permissions("p", 31)), None);
        assert_eq!(refusal(&permissions("p", 32)), Some(IdentityTooLarge::Permissions));
        // 380 bytes and a comma each.
        assert_eq!(refusal(&permissions("%", 10)), None);
        assert_eq!(refusal(&permissions("%", 11)), Some(IdentityTooLarge::Permissions));
        let repeated = [permissions("%", 10), permissions("%", 10)].concat();
        assert_eq!(refusal(&repeated), None, "equal names count once");
    }
}
