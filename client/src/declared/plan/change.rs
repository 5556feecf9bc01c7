//! The changes of a plan.

use crate::declared::{DeclaredKey, DeclaredRole, DeclaredWebhook};
use std::path::PathBuf;

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

/// What can change about an assignment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AssignmentState {
    /// When it ends (RFC 3339); `None` for never.
    pub expires_at: Option<String>,
    /// The name of the files in which it is declared.
    pub managed_by: Option<String>,
}

/// A change.
#[derive(Debug, PartialEq, Eq)]
pub enum Change {
    /// Create a service.
    CreateService {
        /// Whether it accepts unbound tokens; `None` for the default of the control plane.
        accepts_unbound: Option<bool>,
        /// The name of the files in which it is declared.
        managed_by: Option<String>,
    },
    /// Change the `managedBy` of a service.
    ManageService {
        /// The name so far.
        from: Option<String>,
        /// The name in the file.
        to: String,
    },
    /// Delete a service.
    DeleteService,
    /// Change whether a service accepts unbound tokens.
    ChangeService {
        /// Whether it then accepts unbound tokens.
        accepts_unbound: bool,
    },
    /// Change the resource URIs of a service.
    ChangeResourceUris {
        /// Those so far.
        from: Vec<String>,
        /// Those in the file.
        to: Vec<String>,
    },
    /// Change the name of a service.
    RenameService {
        /// The name so far.
        from: String,
        /// The name in the file.
        to: String,
    },
    /// Create a role.
    CreateRole(DeclaredRole),
    /// Change a role.
    ChangeRole {
        /// The id of the role.
        id: String,
        /// The role so far, as far as the file describes it.
        from: DeclaredRole,
        /// The role in the file.
        to: DeclaredRole,
    },
    /// Assign a role, or change the end of an assignment.
    Assign {
        /// The name of the role.
        role: String,
        /// The id of the agent.
        agent: String,
        /// The display name of the agent, if it is known.
        name: String,
        /// When the assignment ends (RFC 3339); `None` for never.
        expires_at: Option<String>,
        /// The name of the files in which the assignment is declared; `None` keeps the current one.
        managed_by: Option<String>,
        /// The assignment so far; `None` for an agent that does not hold the role.
        from: Option<AssignmentState>,
    },
    /// Revoke a role.
    Revoke {
        /// The id of the role.
        role_id: String,
        /// The name of the role.
        role: String,
        /// The id of the agent.
        agent: String,
        /// The display name of the agent.
        name: String,
    },
    /// Delete a role.
    DeleteRole {
        /// The id of the role.
        id: String,
        /// The name of the role.
        name: String,
        /// The number of agents that lose it.
        holders: usize,
    },
    /// Delete a webhook.
    DeleteWebhook {
        /// The id of the webhook.
        id: String,
        /// The URL of the webhook.
        url: String,
    },
    /// Revoke an API key.
    RevokeKey {
        /// The id of the key.
        id: String,
        /// The name of the key.
        name: String,
    },
    /// Create a webhook.
    CreateWebhook(DeclaredWebhook),
    /// Change a webhook.
    ChangeWebhook {
        /// The id of the webhook.
        id: String,
        /// The webhook so far, as far as the file describes it.
        from: DeclaredWebhook,
        /// The webhook in the file.
        to: DeclaredWebhook,
    },
    /// Make another secret of a webhook, whose first one was lost.
    ReplaceWebhookSecret {
        /// The id of the webhook.
        id: String,
        /// The URL of the webhook.
        url: String,
        /// The file for the secret.
        file: PathBuf,
    },
    /// Create an API key.
    CreateKey {
        /// The key in the file.
        key: DeclaredKey,
        /// The id of a key whose secret was lost, and which ends.
        replaces: Option<String>,
        /// The name of the files in which the key is declared.
        managed_by: Option<String>,
    },
}
