//! Roles: their definitions, and their assignment to agents.

mod assignments;
mod change;
mod define;
mod delete;
mod events;

pub(in crate::operations) use assignments::role_revoked_entry;
pub use assignments::{AssignmentRequest, assign_role, revoke_role};
pub use change::{RoleChange, change_role};
pub use define::{RoleRequest, create_role, list_roles};
pub use delete::delete_role;
pub(in crate::operations) use events::{emit_role_revoked_event, role_revoked_event};
