//! What administrators ask about the keys that sign access tokens.

use super::{Api, ApiError, Page, management::Revoked};
use reqwest::Method;
use secrecy::SecretString;
use serde::{Deserialize, Serialize};

/// A signing key.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SigningKey {
    /// Its identifier.
    pub kid: String,
    /// `next`, `signing`, `retired`, `removed` or `revoked`.
    pub status: String,
    /// How it signs.
    pub algorithm: String,
    /// Since when everybody may know it.
    pub published_at: String,
    /// From when it signs, if that is known.
    pub signs_from: Option<String>,
    /// From when another signs.
    pub retired_at: Option<String>,
    /// Since when no token under it is believed.
    pub removed_at: Option<String>,
}

/// A rotation, done or to come.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rotation {
    /// The key that signs then.
    pub kid: String,
    /// `signing`, or `next` as long as it waits.
    pub status: String,
    /// From when.
    pub signs_from: String,
}

impl Api {
    /// The signing keys, also those that are gone; the one published last first, from the `offset`th on.
    pub async fn list_signing_keys(&self, human: &SecretString, offset: usize) -> Result<Page<SigningKey>, ApiError> {
        self.page(human, &["signing-keys"], offset).await
    }

    /// Lets the next signing key sign, as soon as whoever still answers knows it.
    pub async fn rotate_signing_key(&self, human: &SecretString) -> Result<Rotation, ApiError> {
        self.call(Method::POST, &["signing-keys", "rotate"], Some(human), None).await
    }

    /// Revokes a signing key at once, with all tokens under it; says whether these were believed until now.
    pub async fn revoke_signing_key(&self, human: &SecretString, kid: &str) -> Result<bool, ApiError> {
        let path = ["signing-keys", kid];
        self.call(Method::DELETE, &path, Some(human), None).await.map(|Revoked { revoked }| revoked)
    }
}
