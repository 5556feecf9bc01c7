//! The audit log.

use super::{Api, ApiError, Page};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// An entry of the audit log.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditEntry {
    /// The service whose hash chain contains the entry; `None` for the chain of the deployment.
    pub service_id: Option<String>,
    /// The position in the chain, from 1.
    pub sequence: u64,
    /// When the action took place (RFC 3339).
    pub at: String,
    /// The action, such as `role.assigned`.
    // Older control planes call it `act`.
    #[serde(alias = "act")]
    pub action: String,
    /// Who took the action.
    pub actor: AuditActor,
    /// The IP address of the client.
    pub address: Option<String>,
    /// The id of the HTTP request.
    pub request_id: Option<String>,
    /// The agent that the action is about.
    pub agent_id: Option<String>,
    /// The object that was created, changed or removed.
    pub object: Option<AuditObject>,
    /// Further fields, by action.
    pub details: Value,
    /// The hash of the previous entry of the chain.
    pub previous_hash: String,
    /// The hash of this entry.
    pub hash: String,
}

/// Who took an action.
#[derive(Debug, Serialize, Deserialize)]
pub struct AuditActor {
    /// `service_key`, `human`, `public` or `system`.
    pub kind: String,
    /// The issuer of a human user's token.
    pub issuer: Option<String>,
    /// The id of the API key, or the subject of the human user's token.
    pub id: Option<String>,
}

/// The object of an action.
#[derive(Debug, Serialize, Deserialize)]
pub struct AuditObject {
    /// `role`, `service_key`, `signing_key` or `webhook`.
    pub kind: String,
    /// Its id.
    pub id: String,
}

/// Which entries are listed. A field that is `None` does not filter.
#[derive(Debug, Default)]
pub struct AuditFilter {
    /// Entries of this service.
    pub service: Option<String>,
    /// Entries about this agent.
    pub agent: Option<String>,
    /// Entries of this action, such as `role.assigned`.
    pub action: Option<String>,
    /// Entries at or after this time (RFC 3339).
    pub since: Option<String>,
    /// Entries before this time (RFC 3339).
    pub until: Option<String>,
}

impl Api {
    /// Audit entries, newest first: at most `limit`, after the first `offset`.
    pub async fn list_audit_entries(
        &self,
        human: &SecretString,
        filter: &AuditFilter,
        limit: usize,
        offset: usize,
    ) -> Result<Page<AuditEntry>, ApiError> {
        let AuditFilter { service, agent, action, since, until } = filter;
        let parameters = [
            ("serviceId", service),
            ("agentId", agent),
            ("action", action),
            // The name in older control planes. Each version ignores the parameter that it does not know.
            ("act", action),
            ("since", since),
            ("until", until),
        ];
        let mut url = self.endpoint(&["audit"])?;
        url.query_pairs_mut().append_pair("limit", &limit.to_string()).append_pair("offset", &offset.to_string());
        for (name, value) in parameters {
            if let Some(value) = value {
                url.query_pairs_mut().append_pair(name, value);
            }
        }
        self.send(self.http.get(url).bearer_auth(human.expose_secret())).await
    }
}
