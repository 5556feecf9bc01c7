//! Who did what.

use super::{Api, ApiError, Page};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// An act of management, as the audit keeps it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Act {
    /// The service whose chain it is in; none in that of the deployment.
    pub service_id: Option<String>,
    /// Its place in the chain.
    pub sequence: u64,
    /// When it was done.
    pub at: String,
    /// What was done.
    pub act: String,
    /// Who did it.
    pub actor: Actor,
    /// From which address.
    pub address: Option<String>,
    /// By which request.
    pub request_id: Option<String>,
    /// To which agent.
    pub agent_id: Option<String>,
    /// With what.
    pub object: Option<Object>,
    /// More about it.
    pub details: Value,
    /// The hash of the act before.
    pub previous_hash: String,
    /// The hash of this one.
    pub hash: String,
}

/// Who acted.
#[derive(Debug, Serialize, Deserialize)]
pub struct Actor {
    /// `service_key`, `human`, `public` or `system`.
    pub kind: String,
    /// Who says who it is.
    pub issuer: Option<String>,
    /// Who it is.
    pub id: Option<String>,
}

/// What was made, changed or taken.
#[derive(Debug, Serialize, Deserialize)]
pub struct Object {
    /// `role` or `service_key`, for instance.
    pub kind: String,
    /// Its id.
    pub id: String,
}

/// Which acts; what is absent leaves all.
#[derive(Debug, Default)]
pub struct ActFilter {
    /// At a service.
    pub service: Option<String>,
    /// About an agent.
    pub agent: Option<String>,
    /// Of a kind, such as `role.assigned`.
    pub act: Option<String>,
    /// Not before this instant.
    pub since: Option<String>,
    /// Before this instant.
    pub until: Option<String>,
}

impl Api {
    /// Acts of management, newest first: `limit` at the most, from the `offset`th on.
    pub async fn list_acts(
        &self,
        human: &SecretString,
        filter: &ActFilter,
        limit: usize,
        offset: usize,
    ) -> Result<Page<Act>, ApiError> {
        let ActFilter { service, agent, act, since, until } = filter;
        let asked = [("serviceId", service), ("agentId", agent), ("act", act), ("since", since), ("until", until)];
        let mut url = self.at(&["audit"])?;
        url.query_pairs_mut().append_pair("limit", &limit.to_string()).append_pair("offset", &offset.to_string());
        for (name, value) in asked {
            if let Some(value) = value {
                url.query_pairs_mut().append_pair(name, value);
            }
        }
        self.answer(self.http.get(url).bearer_auth(human.expose_secret())).await
    }
}
