//! Requests for services, API keys, roles and agents. `countersign apply` gives the `managedBy` of a file to all objects in it.

use super::{
    ApiError, HumanApi, Page, PageStart, Result, ServiceApi, own_agent::ListedAgent, redact::redacted_url, response::id,
};
use countersign_identity::{ApiKeyId, RoleId, ServiceId};
use reqwest::Method;
use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// A service.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Service {
    /// The id of the service.
    #[serde(deserialize_with = "id::<_, ServiceId>")]
    pub service_id: String,
    /// The display name.
    pub name: String,
    /// The owner.
    pub owner: HumanUser,
    /// Whether the service accepts tokens that were issued for no service.
    pub accepts_unbound_tokens: bool,
    /// The URLs under which clients reach the service.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resource_uris: Vec<String>,
    /// The `managedBy` of the files that declare the service; `None` if no file with a `managedBy` declares it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub managed_by: Option<String>,
    /// When the service was created (RFC 3339).
    pub created_at: String,
}

/// A human user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HumanUser {
    /// The issuer of the user's tokens.
    pub issuer: String,
    /// The subject of the user's tokens.
    pub subject: String,
}

/// A new API key. No later response contains the secret of the API key.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NewApiKey {
    /// The id of the API key.
    #[serde(deserialize_with = "id::<_, ApiKeyId>")]
    pub key_id: String,
    /// The API key, which contains the secret.
    pub api_key: SecretString,
    /// The display name.
    pub name: String,
    /// The scope: `full` or `sync`.
    pub scope: String,
    /// When the API key was created (RFC 3339).
    pub created_at: String,
}

/// An API key in a listing, without its secret.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ListedKey {
    /// The id of the API key.
    #[serde(deserialize_with = "id::<_, ApiKeyId>")]
    pub key_id: String,
    /// The display name.
    pub name: String,
    /// The scope: `full` or `sync`.
    pub scope: String,
    /// The `managedBy` of the files that declare the API key; `None` if no file with a `managedBy` declares it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub managed_by: Option<String>,
    /// When the API key was created (RFC 3339).
    pub created_at: String,
    /// When the API key was revoked (RFC 3339).
    pub revoked_at: Option<String>,
}

/// A role of a service.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Role {
    /// The id of the role.
    #[serde(alias = "id", deserialize_with = "id::<_, RoleId>")]
    pub role_id: String,
    /// The name, which is unique at the service.
    pub name: String,
    /// The description of the role.
    #[serde(default)]
    pub description: String,
    /// The permissions that the role grants.
    pub permissions: Vec<String>,
    /// The `managedBy` of the files that declare the role; `None` if no file with a `managedBy` declares it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub managed_by: Option<String>,
    /// When the role was created (RFC 3339).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<String>,
    /// In the answer to a change, its revision: a sidecar whose data contains all changes up to this revision knows the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
}

/// An agent that holds roles at a service.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentWithRoles {
    /// The agent.
    #[serde(flatten)]
    pub agent: ListedAgent,
    /// The roles that the agent holds at the service.
    pub roles: Vec<AssignedRole>,
}

/// A role that an agent holds.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AssignedRole {
    /// The id of the role.
    #[serde(alias = "id", deserialize_with = "id::<_, RoleId>")]
    pub role_id: String,
    /// The name of the role.
    pub name: String,
    /// When the assignment ends (RFC 3339); `None` for a permanent assignment.
    pub expires_at: Option<String>,
    /// The `managedBy` of the files that declare the assignment; `None` if no file with a `managedBy` declares it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub managed_by: Option<String>,
}

/// The properties of a new service, where `None` means the default; or a change of a service, where `None` changes nothing.
#[derive(Debug, Clone, Copy, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceChange<'a> {
    /// The display name, which a new service must have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<&'a str>,
    /// Whether the service accepts tokens that were issued for no service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accepts_unbound_tokens: Option<bool>,
    /// The URLs under which clients reach the service; they replace the current ones. With `None`, a new service gets no URLs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_uris: Option<&'a [String]>,
    /// The `managedBy` of the files that declare the service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub managed_by: Option<&'a str>,
}

/// The properties of a new role, where `None` means the default; or a change of a role, where `None` changes nothing.
#[derive(Debug, Clone, Copy, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RoleChange<'a> {
    /// The name, which a new role must have, and which never changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<&'a str>,
    /// The description.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<&'a str>,
    /// The permissions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permissions: Option<&'a [String]>,
    /// The `managedBy` of the files that declare the role.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub managed_by: Option<&'a str>,
}

/// The properties of a new API key.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NewKeyProperties<'a> {
    /// The display name.
    pub name: &'a str,
    /// The scope: `full` or `sync`.
    pub scope: &'a str,
    /// The `managedBy` of the files that declare the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub managed_by: Option<&'a str>,
}

/// A change of a role assignment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AssignmentChange {
    /// The id of the agent.
    pub agent_id: String,
    /// The id of the role.
    pub role_id: String,
    /// Whether the role is revoked instead of assigned.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub revoked: bool,
    /// When the assignment ends (RFC 3339); `None` for a permanent assignment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// The `managedBy` of the files that declare the assignment; `None` keeps the current value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub managed_by: Option<String>,
}

impl AssignmentChange {
    /// Maximum number of changes in a request.
    pub const MAX: usize = 32;
}

#[derive(Deserialize)]
struct AssignmentResults {
    results: Vec<AssignmentResult>,
}

#[derive(Deserialize)]
struct AssignmentResult {
    status: u16,
    error: Option<Value>,
}

/// A filter of agents. A field that is `None` matches every agent.
#[derive(Debug, Default)]
pub struct AgentFilter {
    /// Matches agents that hold the role with this id.
    pub role: Option<String>,
    /// Matches agents with this status: `active`, `suspended` or `revoked`.
    pub status: Option<String>,
}

/// A list without pages.
#[derive(Deserialize)]
pub(super) struct List<T> {
    pub(super) data: Vec<T>,
}

/// The response to a revocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Revocation {
    /// Whether the request revoked something; `false` if there was nothing to revoke.
    pub revoked: bool,
    /// A sidecar whose data contains all changes up to this revision knows of the revocation.
    pub revision: u64,
}

/// The part of a response to a change that we need: its revision.
#[derive(Deserialize)]
pub(super) struct Changed {
    pub(super) revision: u64,
}

/// The assignment of a role.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RoleAssignment {
    /// About how many bytes an access token of the agent for the service can have from now on.
    pub token_bytes: u64,
    /// The revision of the change.
    pub revision: u64,
}

/// A changed record.
#[derive(Debug, Deserialize)]
pub struct ChangedRecord<T> {
    /// The record after the change.
    #[serde(flatten)]
    pub record: T,
    /// The revision of the change: a sidecar whose data contains all changes up to this revision knows the change.
    pub revision: u64,
}

impl HumanApi {
    /// Creates a service that the human user owns.
    pub async fn create_service(&self, new: ServiceChange<'_>) -> Result<Service> {
        self.call(Method::POST, &["services"], Some(&json!(new))).await
    }

    /// Lists a page of the services that the human user owns, newest first. For an administrator, lists all services.
    pub async fn list_services(&self, start: &PageStart) -> Result<Page<Service>> {
        self.page(&["services"], start).await
    }

    /// Sets the status of an agent: `active`, `suspended` or `revoked`. The status of a revoked agent cannot be changed.
    pub async fn set_agent_status(&self, agent: &str, status: &str) -> Result<ChangedRecord<Value>> {
        self.call(Method::PUT, &["agents", agent, "status"], Some(&json!({ "status": status }))).await
    }
}

impl ServiceApi {
    /// Reads a service. The human user must be the owner of the service or an administrator.
    pub async fn read(&self) -> Result<Service> {
        self.call(Method::GET, &[], None).await
    }

    /// Changes the properties of a service.
    pub async fn change(&self, change: ServiceChange<'_>) -> Result<ChangedRecord<Service>> {
        self.call(Method::PATCH, &[], Some(&json!(change))).await
    }

    /// Lists a page of the API keys of a service, including revoked ones, newest first.
    pub async fn list_keys(&self, start: &PageStart) -> Result<Page<ListedKey>> {
        self.page(&["keys"], start, &[]).await
    }

    /// Creates an API key.
    pub async fn create_key(&self, new: NewKeyProperties<'_>) -> Result<NewApiKey> {
        self.call(Method::POST, &["keys"], Some(&json!(new))).await
    }

    /// Revokes an API key, unless it was already revoked.
    pub async fn revoke_key(&self, key: &str) -> Result<Revocation> {
        self.call(Method::DELETE, &["keys", key], None).await
    }

    /// Creates a role.
    pub async fn create_role(&self, new: RoleChange<'_>) -> Result<Role> {
        let role = self.call(Method::POST, &["roles"], Some(&json!(new))).await?;
        // The response has no description, so we take it from the request.
        Ok(Role { description: new.description.unwrap_or_default().to_owned(), ..role })
    }

    /// Changes the properties of a role.
    pub async fn change_role(&self, role: &str, change: RoleChange<'_>) -> Result<Role> {
        self.call(Method::PATCH, &["roles", role], Some(&json!(change))).await
    }

    /// Lists the roles of a service.
    pub async fn list_roles(&self) -> Result<Vec<Role>> {
        let path = ["roles"];
        self.call(Method::GET, &path, None).await.map(|List { data }| data)
    }

    /// Deletes a role and all its assignments. Returns the revision of the change.
    pub async fn delete_role(&self, role: &str) -> Result<u64> {
        let path = ["roles", role];
        self.call(Method::DELETE, &path, None).await.map(|Changed { revision }| revision)
    }

    /// Assigns a role to an agent until `expires_at` (RFC 3339), or permanently. If the role is already assigned,
    /// replaces the expiry of the assignment.
    pub async fn assign_role(&self, agent: &str, role: &str, expires_at: Option<&str>) -> Result<RoleAssignment> {
        let path = ["agents", agent, "roles"];
        let body = json!({ "roleId": role, "expiresAt": expires_at });
        self.call(Method::POST, &path, Some(&body)).await
    }

    /// Makes up to [`AssignmentChange::MAX`] changes of assignments. Returns a result for each change, in the same order. A change that
    /// fails does not affect the others.
    pub async fn change_assignments(&self, changes: &[AssignmentChange]) -> Result<Vec<Result<()>>> {
        let path = ["assignments"];
        let body = json!({ "changes": changes });
        let AssignmentResults { results } = self.call(Method::POST, &path, Some(&body)).await?;
        if results.len() != changes.len() {
            return Err(ApiError::Unreadable(redacted_url(self.api.url.as_str())));
        }
        let result = |AssignmentResult { status, error }: AssignmentResult| match error {
            None => Ok(()),
            Some(error) => Err(ApiError::from_body(status, &json!({ "error": error }), None, None)),
        };
        Ok(results.into_iter().map(result).collect())
    }

    /// Revokes a role of an agent, if the role is assigned.
    pub async fn revoke_role(&self, agent: &str, role: &str) -> Result<Revocation> {
        self.call(Method::DELETE, &["agents", agent, "roles", role], None).await
    }

    /// Reads an agent.
    pub async fn read_agent(&self, agent: &str) -> Result<Value> {
        self.call(Method::GET, &["agents", agent], None).await
    }

    /// Lists a page of the agents that hold a role at the service, newest first.
    pub async fn list_agents(&self, filter: &AgentFilter, start: &PageStart) -> Result<Page<AgentWithRoles>> {
        let AgentFilter { role, status } = filter;
        self.page(&["agents"], start, &[("role", role.as_deref()), ("status", status.as_deref())]).await
    }
}
