//! Roles: their definitions, and their assignment to agents.

mod assignments;
mod definitions;

pub use assignments::{AssignmentRequest, assign_role, revoke_role};
pub(in crate::operations) use assignments::{emit_role_revoked, role_revoked_entry};
pub use definitions::{RoleChange, RoleRequest, change_role, create_role, delete_role, list_roles};
