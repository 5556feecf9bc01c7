//! The requests of a registration and of a login, one at a time.

use super::Agent;
use crate::{ControlPlane, HttpClient, HttpResponse, control_plane::text, openssl::der};
use countersign_client::PrivateKey;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// The body of a registration.
pub fn registration(key: &PrivateKey, name: &str) -> Value {
    let public_key = key.public_pem().expect("the key can be encoded");
    json!({ "email": "owner@example.org", "name": name, "publicKey": public_key })
}

impl Agent {
    /// Registers a new agent of a human user.
    pub async fn register_as(control: &ControlPlane, human: &str, name: &str) -> Self {
        Self::register_with(control, human, name, json!({})).await
    }

    /// Registers a new agent of a human user, with further fields of the body.
    pub async fn register_with(control: &ControlPlane, human: &str, name: &str, fields: Value) -> Self {
        let mut agent = Self::unregistered(control);
        let mut body = registration(&agent.key, name);
        for (field, value) in fields.as_object().expect("the fields are an object") {
            body[field] = value.clone();
        }
        agent.id = text(&control.api.send_as(human, "POST", "/auth/register", body).await.expect(201)["agentId"]);
        agent
    }

    /// The hash of the public key, as the API shows it.
    pub fn public_key_hash(&self) -> String {
        let public_key = der(&self.key.public_pem().expect("the key can be encoded"));
        format!("sha256:{}", hex::encode(Sha256::digest(public_key)))
    }

    /// Requests a challenge, for a service or for none.
    pub async fn challenge(&self, api: &HttpClient, service: Option<&str>) -> HttpResponse {
        api.post("/auth/challenge", json!({ "agentId": self.id, "serviceId": service })).await
    }

    /// The body of a login with this challenge.
    pub fn answer(&self, challenge: &Value) -> Value {
        json!({ "challengeId": challenge["challengeId"], "signature": self.key.sign(&text(&challenge["nonce"])) })
    }

    /// Requests a challenge for no service, and returns the body of a login with it.
    pub async fn signed_challenge(&self, api: &HttpClient) -> Value {
        self.answer(&self.challenge(api, None).await.expect(200))
    }

    /// Logs in. Returns the response to the login, or the refusal of the request for a challenge.
    pub async fn log_in(&self, api: &HttpClient, service: Option<&str>) -> HttpResponse {
        let challenge = self.challenge(api, service).await;
        if challenge.status != 200 {
            return challenge;
        }
        api.post("/auth/authenticate", self.answer(&challenge.body)).await
    }
}
