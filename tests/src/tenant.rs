//! A service of a person who is not the administrator, and what its owner does.

use crate::{ControlPlane, HttpClient, HttpResponse, Target, control_plane::text};
use serde_json::{Value, json};

/// A service, its owner and its API key.
pub struct Tenant {
    /// The token of the owner.
    pub human: String,
    /// The id of the service.
    pub service: String,
    /// An API key with scope `full`.
    pub key: String,
    api: HttpClient,
}

impl Tenant {
    /// Creates a service of a person.
    pub async fn new(control: &ControlPlane, person: &str) -> Self {
        Self::named(control, person, "a service").await
    }

    /// Creates a service of a person with this name.
    pub async fn named(control: &ControlPlane, person: &str, name: &str) -> Self {
        let human = control.mint_human(person);
        let (service, key) = control.create_service_of(&human, json!({ "name": name })).await;
        Self { human, service, key, api: control.api.clone() }
    }

    /// A path below the service.
    pub fn path(&self, below: &str) -> String {
        format!("/services/{}{below}", self.service)
    }

    /// Reads a path below the service, with the API key.
    pub async fn get(&self, below: &str) -> HttpResponse {
        self.api.get_as(&self.key, &self.path(below)).await
    }

    /// Sends a request to a path below the service, with the API key.
    pub async fn send(&self, method: &str, below: &str, body: Value) -> HttpResponse {
        self.api.send_as(&self.key, method, &self.path(below), body).await
    }

    /// Creates a role and assigns it to an agent.
    pub async fn assign_new_role(&self, agent: &str, name: &str, permissions: &[&str]) {
        let role = self.send("POST", "/roles", json!({ "name": name, "permissions": permissions })).await.expect(201);
        self.assign(agent, &text(&role["roleId"])).await;
    }

    /// Assigns a role.
    pub async fn assign(&self, agent: &str, role: &str) {
        self.send("POST", &format!("/agents/{agent}/roles"), json!({ "roleId": role })).await.expect(200);
    }

    /// Creates a webhook target for these event kinds.
    pub async fn create_target(&self, url: &str, kinds: &[&str]) -> Target {
        Target::create_in(&self.api, &self.key, &self.path("/webhooks"), url, kinds).await
    }
}
