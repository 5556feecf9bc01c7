//! Requests for the audit log: a chain of entries for each service, and one for the whole deployment.

use super::{HumanApi, Page, PageStart, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// An entry of the audit log.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditEntry {
    /// The service whose audit chain contains the entry; `None` for the chain of the whole Countersign deployment.
    pub service_id: Option<String>,
    /// The position of the entry in its audit chain, from 1.
    pub sequence: u64,
    /// When the action occurred (RFC 3339).
    pub at: String,
    /// The action, such as `role.assigned`.
    pub action: String,
    /// Who did it.
    pub actor: AuditActor,
    /// The IP address of the actor.
    pub address: Option<String>,
    /// The id of the HTTP request that caused the action.
    pub request_id: Option<String>,
    /// The agent that the action concerns; `None` if the action concerns no agent.
    pub agent_id: Option<String>,
    /// The object that was created, changed or removed.
    pub object: Option<AuditObject>,
    /// Further fields of the entry, which depend on the action.
    pub details: Value,
    /// The hash of the previous entry of the chain.
    pub previous_hash: String,
    /// The hash of the entry.
    pub hash: String,
}

/// The actor of an audited action.
#[derive(Debug, Serialize, Deserialize)]
pub struct AuditActor {
    /// The kind of actor: `service_key`, `human`, `public` (a registration without a credential) or `system` (the control plane).
    pub kind: String,
    /// The issuer of a human user's token.
    pub issuer: Option<String>,
    /// The id of the API key, or the subject of the human user's token.
    pub id: Option<String>,
}

/// The object of an audited action.
#[derive(Debug, Serialize, Deserialize)]
pub struct AuditObject {
    /// The kind of object: `role`, `service_key`, `signing_key` or `webhook`.
    pub kind: String,
    /// The id of the object.
    pub id: String,
}

/// A filter of audit entries. A field that is `None` matches every entry.
#[derive(Debug, Default)]
pub struct AuditFilter {
    /// Matches entries of this service.
    pub service: Option<String>,
    /// Matches entries about this agent.
    pub agent: Option<String>,
    /// Matches entries of this action, such as `role.assigned`.
    pub action: Option<String>,
    /// Matches entries at or after this time (RFC 3339).
    pub since: Option<String>,
    /// Matches entries before this time (RFC 3339).
    pub until: Option<String>,
}

impl HumanApi {
    /// Lists at most `limit` audit entries, newest first.
    pub async fn list_audit_entries(
        &self,
        filter: &AuditFilter,
        limit: usize,
        start: &PageStart,
    ) -> Result<Page<AuditEntry>> {
        let AuditFilter { service, agent, action, since, until } = filter;
        let parameters =
            [("serviceId", service), ("agentId", agent), ("action", action), ("since", since), ("until", until)];
        let parameters = parameters.map(|(name, value)| (name, value.as_deref()));
        self.api.page(&self.token, &["audit"], start, limit, &parameters).await
    }
}
