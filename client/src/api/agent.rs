//! Requests of agents: registration, login, refresh and revocation of tokens.

use super::{Api, ApiError, Result, management::Changed, redacted_url, response::id};
use crate::{PrivateKey, Scope, Sign};
use countersign_identity::AgentId;
use reqwest::Method;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// An access token and its refresh token.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Tokens {
    /// The access token, a JWT.
    pub access_token: SecretString,
    /// The refresh token, which can be used once.
    pub refresh_token: SecretString,
    /// The lifetime of the access token, in seconds.
    pub expires_in: u64,
    /// The permissions that the tokens are limited to; `None` after a login with a challenge, whose answer does not contain them.
    #[serde(skip)]
    pub scope: Option<Scope>,
}

/// The response to a registration.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RegisteredAgent {
    /// The id of the agent.
    #[serde(deserialize_with = "id::<_, AgentId>")]
    pub agent_id: String,
    /// The hash of the agent's public key, `sha256:…`.
    pub public_key_hash: String,
    /// The status of the agent: `active`, `suspended` or `revoked`.
    pub status: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Challenge {
    challenge_id: String,
    nonce: String,
}

impl Api {
    /// Registers an agent with the public key of `key`. `human` is the token of a human user; only a control plane with public
    /// registration accepts `None`.
    pub async fn register(
        &self,
        key: &PrivateKey,
        email: &str,
        name: &str,
        human: Option<&SecretString>,
    ) -> Result<RegisteredAgent> {
        self.register_pem(&key.public_pem()?, email, name, human).await
    }

    /// Like [`Self::register`], for a public key in PEM.
    pub async fn register_pem(
        &self,
        public_key: &str,
        email: &str,
        name: &str,
        human: Option<&SecretString>,
    ) -> Result<RegisteredAgent> {
        let body = json!({ "email": email, "name": name, "publicKey": public_key });
        self.call(Method::POST, &["auth", "register"], human, Some(&body)).await
    }

    /// Logs an agent in: requests a challenge, signs it and sends the signature. `service` becomes the audience of the token; if it
    /// is `None`, the control plane chooses the audience.
    pub async fn login(&self, signer: &impl Sign, agent: &str, service: Option<&str>) -> Result<Tokens> {
        let challenge_request = json!({ "agentId": agent, "serviceId": service });
        let challenge: Challenge =
            self.call(Method::POST, &["auth", "challenge"], None, Some(&challenge_request)).await?;
        // A hostile server could send the text of a client assertion instead of a nonce, and log in elsewhere with our signature.
        if !challenge.nonce.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(ApiError::Unreadable(redacted_url(self.url.as_str())));
        }
        let signature = signer.sign_text(&challenge.nonce).await?;
        let login_request = json!({ "challengeId": challenge.challenge_id, "signature": signature });
        self.call(Method::POST, &["auth", "authenticate"], None, Some(&login_request)).await
    }

    /// Exchanges a refresh token for a new token pair.
    pub async fn refresh(&self, refresh_token: &SecretString) -> Result<Tokens> {
        let body = json!({ "refreshToken": refresh_token.expose_secret() });
        self.call(Method::POST, &["auth", "refresh"], None, Some(&body)).await
    }

    /// Revokes an access token, or the session of a refresh token. According to RFC 7009, the response does not reveal
    /// whether the token was valid. Returns the revision of the change.
    pub async fn revoke_token(&self, token: &SecretString) -> Result<u64> {
        let body = json!({ "token": token.expose_secret() });
        self.call(Method::POST, &["auth", "revoke"], None, Some(&body)).await.map(|Changed { revision }| revision)
    }

    /// Fetches the public keys that verify access tokens, as a JWK Set (RFC 7517).
    pub async fn key_set(&self) -> Result<Value> {
        self.call(Method::GET, &[".well-known", "jwks.json"], None, None).await
    }
}
