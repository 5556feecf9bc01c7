//! Roles: their definitions, and their assignment to agents.

mod assign;
mod change;
mod define;
mod delete;
mod revoke;

pub use assign::{AssignmentRequest, assign_role};
pub use change::{RoleChange, change_role};
pub use define::{RoleRequest, create_role, list_roles};
pub use delete::delete_role;
pub use revoke::revoke_role;
pub(in crate::operations) use revoke::role_revoked_entry;
