//! What services ask with their API key, and people with their token.

use super::{Api, ApiError};
use reqwest::Method;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

/// Items of a page at the most.
const LARGEST_PAGE: &str = "200";

/// A service.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Service {
    /// Its identifier.
    pub service_id: String,
    /// What people call it.
    pub name: String,
    /// Whether it takes tokens that are bound to no service.
    pub accepts_unbound_tokens: bool,
    /// When it was made.
    pub created_at: String,
}

/// A service's API key, just made: the secret is never told again.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApiKey {
    /// Its identifier, with which it is revoked.
    pub key_id: String,
    /// The secret.
    pub api_key: SecretString,
    /// What people call it.
    pub name: String,
    /// `full` or `sync`.
    pub scope: String,
    /// When it was made.
    pub created_at: String,
}

/// An API key as it is listed: its secret is kept nowhere.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ListedKey {
    /// Its identifier, with which it is revoked.
    pub key_id: String,
    /// What people call it.
    pub name: String,
    /// `full` or `sync`.
    pub scope: String,
    /// When it was made.
    pub created_at: String,
    /// When it was revoked, if it was.
    pub revoked_at: Option<String>,
}

/// Part of a long listing.
#[derive(Debug, Deserialize)]
pub struct Page<T> {
    /// What is on it.
    pub data: Vec<T>,
    /// Where it is.
    pub pagination: Pagination,
}

/// Where a page is in its listing.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pagination {
    /// Whether there is another page behind this one.
    pub has_more: bool,
}

/// A role of a service.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Role {
    /// Its identifier.
    #[serde(alias = "id")]
    pub role_id: String,
    /// Its name, unique at the service.
    pub name: String,
    /// What it is for.
    #[serde(default)]
    pub description: String,
    /// What its holders may do.
    pub permissions: Vec<String>,
    /// When it was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<String>,
}

#[derive(Deserialize)]
struct Listed<T> {
    data: Vec<T>,
}

#[derive(Deserialize)]
pub(super) struct Revoked {
    pub(super) revoked: bool,
}

impl Api {
    /// Makes a service, owned by the person.
    pub async fn create_service(
        &self,
        human: &SecretString,
        name: &str,
        accepts_unbound: bool,
    ) -> Result<Service, ApiError> {
        let body = json!({ "name": name, "acceptsUnboundTokens": accepts_unbound });
        self.call(Method::POST, &["services"], Some(human), Some(&body)).await
    }

    /// A service, as its owner sees it.
    pub async fn read_service(&self, human: &SecretString, service: &str) -> Result<Service, ApiError> {
        self.call(Method::GET, &["services", service], Some(human), None).await
    }

    /// Changes what people call a service, and whether it accepts tokens that are bound to none; what is absent stays.
    pub async fn change_service(
        &self,
        human: &SecretString,
        service: &str,
        name: Option<&str>,
        accepts_unbound: Option<bool>,
    ) -> Result<Service, ApiError> {
        let body = json!({ "name": name, "acceptsUnboundTokens": accepts_unbound });
        self.call(Method::PATCH, &["services", service], Some(human), Some(&body)).await
    }

    /// The services that the person owns, all of them for an administrator; newest first, from the `offset`th on.
    pub async fn list_services(&self, human: &SecretString, offset: usize) -> Result<Page<Service>, ApiError> {
        self.page(human, &["services"], offset).await
    }

    /// The API keys of a service, also revoked ones; newest first, from the `offset`th on.
    pub async fn list_keys(
        &self,
        human: &SecretString,
        service: &str,
        offset: usize,
    ) -> Result<Page<ListedKey>, ApiError> {
        self.page(human, &["services", service, "keys"], offset).await
    }

    pub(super) async fn page<T: DeserializeOwned>(
        &self,
        human: &SecretString,
        path: &[&str],
        offset: usize,
    ) -> Result<Page<T>, ApiError> {
        let mut url = self.at(path)?;
        url.query_pairs_mut().append_pair("limit", LARGEST_PAGE).append_pair("offset", &offset.to_string());
        self.answer(self.http.get(url).bearer_auth(human.expose_secret())).await
    }

    /// Makes an API key of scope `full` or `sync`.
    pub async fn create_key(
        &self,
        human: &SecretString,
        service: &str,
        name: &str,
        scope: &str,
    ) -> Result<ApiKey, ApiError> {
        let body = json!({ "name": name, "scope": scope });
        self.call(Method::POST, &["services", service, "keys"], Some(human), Some(&body)).await
    }

    /// Revokes an API key; says whether it was good until now.
    pub async fn revoke_key(&self, human: &SecretString, service: &str, key: &str) -> Result<bool, ApiError> {
        let path = ["services", service, "keys", key];
        self.call(Method::DELETE, &path, Some(human), None).await.map(|Revoked { revoked }| revoked)
    }

    /// Defines a role. `manager` is the service's key of full scope, or its owner's token.
    pub async fn create_role(
        &self,
        manager: &SecretString,
        service: &str,
        name: &str,
        description: &str,
        permissions: &[String],
    ) -> Result<Role, ApiError> {
        let body = json!({ "name": name, "description": description, "permissions": permissions });
        let made = self.call(Method::POST, &["services", service, "roles"], Some(manager), Some(&body)).await?;
        Ok(Role { description: description.to_owned(), ..made })
    }

    /// The roles of a service.
    pub async fn list_roles(&self, manager: &SecretString, service: &str) -> Result<Vec<Role>, ApiError> {
        let path = ["services", service, "roles"];
        self.call(Method::GET, &path, Some(manager), None).await.map(|Listed { data }| data)
    }

    /// Deletes a role, whoever holds it.
    pub async fn delete_role(&self, manager: &SecretString, service: &str, role: &str) -> Result<(), ApiError> {
        let path = ["services", service, "roles", role];
        self.call::<Value>(Method::DELETE, &path, Some(manager), None).await.map(drop)
    }

    /// Gives a role to an agent, until an instant (RFC 3339) or for good; again: replaces the end.
    pub async fn assign_role(
        &self,
        manager: &SecretString,
        service: &str,
        agent: &str,
        role: &str,
        expires_at: Option<&str>,
    ) -> Result<(), ApiError> {
        let path = ["services", service, "agents", agent, "roles"];
        let body = json!({ "roleId": role, "expiresAt": expires_at });
        self.call::<Value>(Method::POST, &path, Some(manager), Some(&body)).await.map(drop)
    }

    /// Takes a role away; says whether it was held.
    pub async fn revoke_role(
        &self,
        manager: &SecretString,
        service: &str,
        agent: &str,
        role: &str,
    ) -> Result<bool, ApiError> {
        let path = ["services", service, "agents", agent, "roles", role];
        self.call(Method::DELETE, &path, Some(manager), None).await.map(|Revoked { revoked }| revoked)
    }

    /// An agent, as a service sees it.
    pub async fn read_agent(&self, key: &SecretString, service: &str, agent: &str) -> Result<Value, ApiError> {
        self.call(Method::GET, &["services", service, "agents", agent], Some(key), None).await
    }

    /// Makes an agent `active`, `suspended` or, for good, `revoked`.
    pub async fn set_agent_status(&self, human: &SecretString, agent: &str, status: &str) -> Result<Value, ApiError> {
        self.call(Method::PUT, &["agents", agent, "status"], Some(human), Some(&json!({ "status": status }))).await
    }

    /// Asks who stands behind an agent's token, as a service without a proxy does.
    pub async fn verify(&self, key: &SecretString, service: &str, token: &SecretString) -> Result<Value, ApiError> {
        let request = self.http.get(self.at(&["services", service, "verify"])?).bearer_auth(key.expose_secret());
        self.answer(request.header("x-agent-token", token.expose_secret())).await
    }
}
