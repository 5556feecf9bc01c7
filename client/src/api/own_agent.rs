//! Requests of human users about the agents that they have registered.

use super::{HumanApi, Page, PageStart, Result, management::Changed, response::id};
use countersign_identity::{AgentId, ServiceId};
use reqwest::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// An agent in a list of agents.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ListedAgent {
    /// The id of the agent.
    #[serde(alias = "id", deserialize_with = "id::<_, AgentId>")]
    pub agent_id: String,
    /// The display name.
    pub name: String,
    /// The e-mail address with which the agent was registered; `None` if anyone but the owner of the agent lists it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub email: Option<String>,
    /// The status: `active`, `suspended` or `revoked`.
    pub status: String,
    /// The trust score, from 0 to 100.
    pub trust_score: Value,
    /// The hash of the agent's public key, `sha256:…`.
    pub public_key_hash: String,
    /// When the agent was registered (RFC 3339).
    pub created_at: String,
    /// When the agent last logged in or refreshed its token (RFC 3339).
    pub last_seen_at: Option<String>,
}

/// A service at which an agent holds a role, or which its owner has left: such a service can assign no roles to the agent.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceOfAgent {
    /// The id of the service.
    #[serde(deserialize_with = "id::<_, ServiceId>")]
    pub service_id: String,
    /// The display name; `None` if the agent held no role there when its owner left the service.
    pub name: Option<String>,
    /// The roles that the agent holds at the service.
    pub roles: Vec<HeldRole>,
    /// Whether the service may assign roles to the agent.
    pub may_assign_roles: bool,
    /// When the owner of the agent left the service (RFC 3339).
    pub left_at: Option<String>,
}

/// A role that an agent holds at a service.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HeldRole {
    /// The name of the role.
    pub name: String,
    /// When the assignment ends (RFC 3339); `None` for a permanent assignment.
    pub expires_at: Option<String>,
}

/// The result of [`HumanApi::set_admission`].
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Admission {
    /// The number of roles that the agent lost.
    pub revoked_roles: u64,
    /// The revision of the change: a sidecar whose data contains all changes up to this revision knows the change.
    pub revision: u64,
}

impl HumanApi {
    /// Lists a page of the agents that the human user has registered, newest first.
    pub async fn list_own_agents(&self, start: &PageStart) -> Result<Page<ListedAgent>> {
        self.page(&["agents"], start).await
    }

    /// Deletes an agent. The human user must be the owner of the agent or an administrator. Returns the revision of the change.
    pub async fn delete_agent(&self, agent: &str) -> Result<u64> {
        let path = ["agents", agent];
        self.call(Method::DELETE, &path, None).await.map(|Changed { revision }| revision)
    }

    /// Lists a page of the services at which an agent holds a role, or which its owner has left.
    pub async fn list_services_of_agent(&self, agent: &str, start: &PageStart) -> Result<Page<ServiceOfAgent>> {
        self.page(&["agents", agent, "services"], start).await
    }

    /// Makes the agent leave a service (`may_assign_roles` is false), or lets the service assign roles to the agent again.
    pub async fn set_admission(&self, agent: &str, service: &str, may_assign_roles: bool) -> Result<Admission> {
        let body = json!({ "mayAssignRoles": may_assign_roles });
        let path = ["agents", agent, "services", service];
        self.call(Method::PUT, &path, Some(&body)).await
    }
}
