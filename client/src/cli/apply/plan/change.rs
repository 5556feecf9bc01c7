//! The changes of a plan.

use crate::cli::apply::format::{DeclaredKey, DeclaredRole, DeclaredWebhook, KubernetesSecret};
use std::path::PathBuf;

/// The properties of an assignment that a plan can change.
#[derive(Debug)]
pub struct AssignmentState {
    /// When the assignment ends (RFC 3339); `None` for never.
    pub expires_at: Option<String>,
    /// The `managedBy` of the files that declare the assignment.
    pub managed_by: Option<String>,
}

/// A change from what exists (`from`) to what the file declares. All objects that are created or changed get the `managed_by` of
/// their [`ServicePlan`](super::ServicePlan).
#[derive(Debug)]
#[expect(clippy::enum_variant_names, reason = "some changes create or delete, and some change what exists")]
pub enum Change {
    CreateService {
        /// Whether the service accepts unbound tokens, which are for no service; `None` for the default of the control plane.
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
        /// The `managedBy` of the role before the change.
        managed_by: Option<String>,
        /// The role before the change, with only the fields that the file declares.
        from: DeclaredRole,
        to: DeclaredRole,
    },
    /// Assign a role, or change the end or the `managedBy` of an assignment. `name` is the agent's; empty if it is unknown.
    Assign {
        role: String,
        agent: String,
        name: String,
        /// When the assignment ends (RFC 3339); `None` for never.
        expires_at: Option<String>,
        /// The assignment before the change; `None` for an agent that does not hold the role.
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
        /// The number of agents that lose the role.
        holders: usize,
    },
    DeleteWebhook {
        id: String,
        url: String,
    },
    RevokeKey {
        id: String,
        name: String,
        /// The entries of Kubernetes Secrets that have a line with the key.
        secrets: Vec<KubernetesSecret>,
    },
    CreateWebhook(DeclaredWebhook),
    ChangeWebhook {
        id: String,
        /// The `managedBy` of the webhook before the change.
        managed_by: Option<String>,
        /// The webhook before the change, with only the fields that the file declares.
        from: DeclaredWebhook,
        to: DeclaredWebhook,
    },
    /// Make another secret for a webhook whose secret was lost.
    ReplaceWebhookSecret {
        id: String,
        url: String,
        file: PathBuf,
    },
    CreateKey {
        key: DeclaredKey,
        /// The id of a key whose secret was lost, which is revoked before the new key is made.
        replaces: Option<String>,
    },
}

impl Change {
    /// Whether the change deletes an object, or revokes a role of an agent or an API key.
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
