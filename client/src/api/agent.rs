//! What an agent asks: registration, login, refresh, and their end.

use super::{Api, ApiError};
use crate::{PrivateKey, Sign};
use reqwest::Method;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// A token pair.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Tokens {
    /// The access token, a JWT.
    pub access_token: SecretString,
    /// Replaces the token pair when the access token has expired.
    pub refresh_token: SecretString,
    /// Life of the access token, in seconds.
    pub expires_in: u64,
}

/// A registered agent.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Registered {
    /// Its identifier.
    pub agent_id: String,
    /// Hash of its public key.
    pub public_key_hash: String,
    /// Where it is in its life.
    pub status: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Challenge {
    challenge_id: String,
    nonce: String,
}

impl Api {
    /// Registers the public half of a key; `human` is a person's token, where registration is not public.
    pub async fn register(
        &self,
        key: &PrivateKey,
        email: &str,
        name: &str,
        human: Option<&SecretString>,
    ) -> Result<Registered, ApiError> {
        self.register_pem(&key.public_pem()?, email, name, human).await
    }

    /// The same for a key that something else holds.
    pub async fn register_pem(
        &self,
        public: &str,
        email: &str,
        name: &str,
        human: Option<&SecretString>,
    ) -> Result<Registered, ApiError> {
        let body = json!({ "email": email, "name": name, "publicKey": public });
        self.call(Method::POST, &["auth", "register"], human, Some(&body)).await
    }

    /// Logs in: asks for a challenge, signs it, sends the signature.
    pub async fn login(&self, signer: &impl Sign, agent: &str, service: Option<&str>) -> Result<Tokens, ApiError> {
        let asked = json!({ "agentId": agent, "serviceId": service });
        let challenge: Challenge = self.call(Method::POST, &["auth", "challenge"], None, Some(&asked)).await?;
        let signature = signer.sign_nonce(&challenge.nonce).await?;
        let answer = json!({ "challengeId": challenge.challenge_id, "signature": signature });
        self.call(Method::POST, &["auth", "authenticate"], None, Some(&answer)).await
    }

    /// Replaces a token pair.
    pub async fn refresh(&self, tokens: &Tokens) -> Result<Tokens, ApiError> {
        self.refresh_with(&tokens.refresh_token).await
    }

    /// Replaces a token pair of which the refresh token is known.
    pub async fn refresh_with(&self, refresh: &SecretString) -> Result<Tokens, ApiError> {
        let body = json!({ "refreshToken": refresh.expose_secret() });
        self.call(Method::POST, &["auth", "refresh"], None, Some(&body)).await
    }

    /// Ends a refresh token's login, or an access token. It is not said whether there was anything to end.
    pub async fn revoke_token(&self, token: &SecretString) -> Result<(), ApiError> {
        let body = json!({ "token": token.expose_secret() });
        self.call::<Value>(Method::POST, &["auth", "revoke"], None, Some(&body)).await.map(drop)
    }

    /// The keys that sign access tokens, as published (RFC 7517).
    pub async fn key_set(&self) -> Result<Value, ApiError> {
        self.call(Method::GET, &[".well-known", "jwks.json"], None, None).await
    }
}
