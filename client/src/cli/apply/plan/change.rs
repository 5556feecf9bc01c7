//! The changes of a plan.

use crate::cli::apply::format::{DeclaredKey, DeclaredRole, DeclaredWebhook};
use std::path::PathBuf;

/// What can change about an assignment.
#[derive(Debug)]
pub struct AssignmentState {
    /// When it ends (RFC 3339); `None` for never.
    pub expires_at: Option<String>,
    /// The name of the files in which it is declared.
    pub managed_by: Option<String>,
}

/// A change: what exists so far (`from`), and what is in the file. What is created or changed gets the `managed_by` of its
/// [`ServicePlan`](super::ServicePlan).
#[derive(Debug)]
#[expect(clippy::enum_variant_names, reason = "some changes create or delete, and some change what exists")]
pub enum Change {
    CreateService {
        /// Whether it accepts unbound tokens; `None` for the default of the control plane.
        accepts_unbound: Option<bool>,
    },
    /// Change the `managedBy` of a service.
    ManageService {
        from: Option<String>,
        to: String,
    },
    DeleteService,
    /// Change whether a service accepts unbound tokens.
    ChangeService {
        accepts_unbound: bool,
    },
    ChangeResourceUris {
        from: Vec<String>,
        to: Vec<String>,
    },
    RenameService {
        from: String,
        to: String,
    },
    CreateRole(DeclaredRole),
    ChangeRole {
        id: String,
        /// The name so far of the files in which it is declared.
        managed_by: Option<String>,
        /// The role so far, as far as the file describes it.
        from: DeclaredRole,
        to: DeclaredRole,
    },
    /// Assign a role, or change the end of an assignment.
    Assign {
        role: String,
        agent: String,
        name: String,
        /// When the assignment ends (RFC 3339); `None` for never.
        expires_at: Option<String>,
        /// The assignment so far; `None` for an agent that does not hold the role.
        from: Option<AssignmentState>,
    },
    Revoke {
        role_id: String,
        role: String,
        agent: String,
        name: String,
    },
    DeleteRole {
        id: String,
        name: String,
        /// The number of agents that lose it.
        holders: usize,
    },
    DeleteWebhook {
        id: String,
        url: String,
    },
    RevokeKey {
        id: String,
        name: String,
    },
    CreateWebhook(DeclaredWebhook),
    ChangeWebhook {
        id: String,
        /// The name so far of the files in which it is declared.
        managed_by: Option<String>,
        /// The webhook so far, as far as the file describes it.
        from: DeclaredWebhook,
        to: DeclaredWebhook,
    },
    /// Make another secret of a webhook, whose first one was lost.
    ReplaceWebhookSecret {
        id: String,
        url: String,
        file: PathBuf,
    },
    CreateKey {
        key: DeclaredKey,
        /// The id of a key whose secret was lost, and which ends.
        replaces: Option<String>,
    },
}

impl Change {
    /// Whether the change only takes something away.
    pub const fn is_deletion(&self) -> bool {
        matches!(
            self,
            Self::DeleteService
                | Self::Revoke { .. }
                | Self::DeleteRole { .. }
                | Self::DeleteWebhook { .. }
                | Self::RevokeKey { .. }
        )
    }
}
