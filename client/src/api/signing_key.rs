//! The keys that sign access tokens: the requests of administrators.

use super::{Api, ApiError, Page, management::Revoked};
use reqwest::Method;
use secrecy::SecretString;
use serde::{Deserialize, Serialize};

/// A signing key.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SigningKey {
    /// The key id, a thumbprint (RFC 7638).
    pub kid: String,
    /// `next`, `signing`, `retired`, `removed` or `revoked`.
    pub status: String,
    /// The signature algorithm, `ES256`.
    pub algorithm: String,
    /// When it was added to the JWK Set.
    pub published_at: String,
    /// When it starts to sign, if that is decided.
    pub signs_from: Option<String>,
    /// When the next key started to sign.
    pub retired_at: Option<String>,
    /// When it was removed from the JWK Set, so that its tokens became invalid.
    pub removed_at: Option<String>,
}

/// A rotation that is done or scheduled.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rotation {
    /// The new signing key.
    pub kid: String,
    /// `signing`, or `next` until the switch.
    pub status: String,
    /// The time of the switch (RFC 3339).
    pub signs_from: String,
}

impl Api {
    /// A page of the signing keys, removed ones included, newest first.
    pub async fn list_signing_keys(&self, human: &SecretString, offset: usize) -> Result<Page<SigningKey>, ApiError> {
        self.page(human, &["signing-keys"], offset).await
    }

    /// Rotates the signing key. The next key starts to sign when every sidecar with a live lease has loaded it.
    pub async fn rotate_signing_key(&self, human: &SecretString) -> Result<Rotation, ApiError> {
        self.call(Method::POST, &["signing-keys", "rotate"], Some(human), None).await
    }

    /// Revokes a signing key and with it every token that it signed. Returns `false` if it was not trusted before.
    pub async fn revoke_signing_key(&self, human: &SecretString, kid: &str) -> Result<bool, ApiError> {
        let path = ["signing-keys", kid];
        self.call(Method::DELETE, &path, Some(human), None).await.map(|Revoked { revoked }| revoked)
    }
}
