//! Roles: their definitions, and their assignment to agents.

mod assignments;
mod change;
mod define;
mod delete;

pub(in crate::operations) use assignments::{AssignmentChange, role_revoked_entry};
pub use assignments::{AssignmentRequest, assign_role, revoke_role};
pub use change::{RoleChange, change_role};
pub use define::{RoleRequest, create_role, list_roles};
pub use delete::delete_role;
