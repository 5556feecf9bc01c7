//! An agent with an OAuth library, and a service behind Envoy that the agent may read.

use super::library::{Answer, Library, Settings};
use countersign_tests::{Agent, Environment, eventually, oauth};
use serde_json::json;
use std::path::PathBuf;

/// The servers, and an agent with a library.
pub struct Fixture<L> {
    pub environment: Environment,
    pub library: L,
    pub agent: Agent,
    /// The resource URI of the service, which is the URL of Envoy.
    pub resource: String,
}

impl<L: Library> Fixture<L> {
    /// Starts the servers. The agent has the role `reader` with the permission `read`.
    pub async fn start(connect: impl FnOnce(Settings) -> L) -> Self {
        let environment = Environment::start().await;
        let control = &environment.control;
        let resource = environment.envoy.listener.url.clone();
        let body = json!({ "resourceUris": [resource] });
        control.api.send_as(control.human(), "PATCH", &control.path(""), body).await.expect(200);
        let has_metadata = async || {
            let refused = environment.envoy.listener.get("/").await;
            refused.header("www-authenticate").contains("resource_metadata").then_some(())
        };
        eventually("the sidecar has the resource URI", has_metadata, || environment.sidecar.log()).await;
        let (agent, _) = environment.agent("reader", &["read"]).await;
        let key_file = control.folder().join("agent.key");
        agent.key.write(&key_file).unwrap();
        let (issuer, authority) = (oauth::issuer(control).await, control.env["CA"].clone().into());
        assert_eq!(issuer, control.env["URL"], "clients find the control plane at its issuer");
        let library = connect(Settings { issuer, agent: agent.id.clone(), key_file, authority });
        Self { environment, library, agent, resource }
    }

    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.resource)
    }

    pub async fn call(&self, path: &str, token: &str, status: u16) -> Answer {
        let answer = self.library.call(&self.url(path), Some(token)).await;
        assert_eq!(answer.status, status, "{answer:?}");
        answer
    }

    /// Calls the service until it refuses the token.
    pub async fn wait_until_refused(&self, token: &str) -> Answer {
        let refusal = async || Some(self.library.call(&self.url("/"), Some(token)).await).filter(|it| it.status != 200);
        eventually("the sidecar refuses the token", refusal, || self.environment.sidecar.log()).await
    }

    /// Creates another service with a resource URI, and returns the URI.
    pub async fn other_resource(&self) -> String {
        let control = &self.environment.control;
        let (service, _) = control.create_service(json!({ "name": "other" })).await;
        let uri = "https://other.example";
        let body = json!({ "resourceUris": [uri] });
        control.api.send_as(control.human(), "PATCH", &format!("/services/{service}"), body).await.expect(200);
        uri.to_owned()
    }

    /// Writes the key of another agent to a file.
    pub async fn other_key(&self) -> PathBuf {
        let other = Agent::register(&self.environment.control, "other").await;
        let file = self.environment.control.folder().join("other.key");
        other.key.write(&file).unwrap();
        file
    }
}
