//! An agent made with the client library.

use crate::ControlPlane;
use countersign_client::{Api, PrivateKey, Tokens};
use secrecy::ExposeSecret;

/// A registered agent and its key.
pub struct Agent {
    /// Its id.
    pub id: String,
    /// Its key.
    pub key: PrivateKey,
    /// Where it is registered.
    pub api: Api,
}

impl Agent {
    /// Registers a new agent.
    pub async fn register(at: &ControlPlane, name: &str) -> Self {
        let api = Api::new(&at.env["URL"], Some(&at.authority())).expect("a client");
        let key = PrivateKey::generate();
        let registered = api.register(&key, "owner@example.org", name, None).await.expect("registered");
        Self { id: registered.agent_id, key, api }
    }

    /// Logs in.
    pub async fn login(&self) -> Tokens {
        self.api.login(&self.key, &self.id, None).await.expect("logged in")
    }

    /// Logs in and gives the access token.
    pub async fn token(&self) -> String {
        self.login().await.access_token.expose_secret().to_owned()
    }

    /// Logs in for one service and gives the access token.
    pub async fn token_for(&self, service: &str) -> String {
        let tokens = self.api.login(&self.key, &self.id, Some(service)).await.expect("logged in");
        tokens.access_token.expose_secret().to_owned()
    }
}
