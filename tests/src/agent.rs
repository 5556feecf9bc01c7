//! Registers agents and logs them in with the client library.

mod requests;

pub use requests::registration;

use crate::{ControlPlane, HttpClient, http::InTurn};
use countersign_client::{Api, PrivateKey, Tokens};
use secrecy::ExposeSecret;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// A registered agent and its private key.
pub struct Agent {
    /// Agent id.
    pub id: String,
    /// Private key.
    pub key: PrivateKey,
    /// API clients of the replicas of the control plane where the agent is registered.
    apis: InTurn<Api>,
}

impl Agent {
    /// Registers a new agent.
    pub async fn register(control: &ControlPlane, name: &str) -> Self {
        let mut agent = Self::unregistered(control);
        let registered = agent.api().register(&agent.key, "owner@example.org", name, None).await;
        agent.id = registered.expect("the registration succeeds").agent_id;
        agent
    }

    /// An agent without an id.
    fn unregistered(control: &ControlPlane) -> Self {
        let authority = control.authority();
        let connect = |url: String| Api::new(&url, Some(&authority)).expect("the client can be built");
        let apis = InTurn::new(control.urls().into_iter().map(connect).collect());
        Self { id: String::new(), key: PrivateKey::generate(), apis }
    }

    /// Registers an agent and assigns it a new role of the first service. Returns the agent and the role id.
    pub async fn with_role(control: &ControlPlane, role: &str, permissions: &[&str]) -> (Self, String) {
        let agent = Self::register(control, "Test Agent").await;
        let role = control.create_role(role, permissions).await;
        control.assign(&agent.id, &role).await;
        (agent, role)
    }

    /// The API client of the replica whose turn it is.
    pub fn api(&self) -> &Api {
        self.apis.next()
    }

    /// Logs in without naming a service.
    pub async fn login(&self) -> Tokens {
        self.api().login(&self.key, &self.id, None).await.expect("the login succeeds")
    }

    /// Logs in and returns the access token.
    pub async fn token(&self) -> String {
        self.login().await.access_token.expose_secret().to_owned()
    }

    /// Logs in for a service and returns the access token.
    pub async fn token_for(&self, service: &str) -> String {
        let tokens = self.api().login(&self.key, &self.id, Some(service)).await.expect("the login succeeds");
        tokens.access_token.expose_secret().to_owned()
    }
}

/// Requests a challenge, and returns the body of a login with it.
pub async fn signed_challenge(api: &HttpClient, agent: &str, key: &PrivateKey) -> Value {
    let challenge = api.post("/auth/challenge", json!({ "agentId": agent })).await.expect(200);
    let signature = key.sign(challenge["nonce"].as_str().expect("a challenge has a nonce"));
    json!({ "challengeId": challenge["challengeId"], "signature": signature })
}

/// Logs in with a challenge of this API, and returns the response.
pub async fn log_in_at(api: &HttpClient, agent: &str, key: &PrivateKey) -> Value {
    api.post("/auth/authenticate", signed_challenge(api, agent, key).await).await.expect(200)
}

/// A forged refresh token of the session of `issued`. Its checksum is right, so the control plane looks for the session.
pub fn forged_refresh_token(issued: &str) -> String {
    let (start, secret) = issued.split_at(issued.len() - 64);
    let mut secret = hex::decode(secret).expect("the secret is in hex");
    secret[0] ^= 1;
    let (checked, checksum) = secret.split_at_mut(28);
    checksum.copy_from_slice(&Sha256::digest(checked)[..4]);
    format!("{start}{}", hex::encode(secret))
}
