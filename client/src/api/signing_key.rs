//! Requests of administrators for the keys that sign access tokens.

use super::{
    HumanApi, Page, PageStart, Result,
    management::Revocation,
    response::{id, line},
};
use countersign_identity::Kid;
use reqwest::Method;
use serde::{Deserialize, Serialize};

/// A key that signs access tokens.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SigningKey {
    /// The key id, which is a thumbprint (RFC 7638).
    pub kid: String,
    /// The status: `next`, `signing`, `retired`, `removed` or `revoked`.
    pub status: String,
    /// The signature algorithm, `ES256`.
    pub algorithm: String,
    /// When the key was added to the JWK Set.
    pub published_at: String,
    /// When the key starts to sign tokens; `None` if no rotation is scheduled.
    pub signs_from: Option<String>,
    /// When the next signing key replaced this key.
    pub retired_at: Option<String>,
    /// When the key was removed from the JWK Set or revoked. From then on, the tokens that it signed are invalid.
    pub removed_at: Option<String>,
}

/// A completed or scheduled rotation of the signing key. Commands put the key id and the time into sentences, so both are checked.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rotation {
    /// The key id of the new signing key.
    #[serde(deserialize_with = "id::<_, Kid>")]
    pub kid: String,
    /// The status of the new key: `next` before the switch to the new key, `signing` after the switch.
    pub status: String,
    /// When the new key starts to sign tokens (RFC 3339).
    #[serde(deserialize_with = "line")]
    pub signs_from: String,
    /// The revision of the rotation: a sidecar whose data contains all changes up to this revision knows the new key.
    pub revision: u64,
}

impl HumanApi {
    /// Lists a page of the signing keys, including removed ones, newest first.
    pub async fn list_signing_keys(&self, start: &PageStart) -> Result<Page<SigningKey>> {
        self.page(&["signing-keys"], start).await
    }

    /// Rotates the signing key. The next key starts to sign once every sidecar that still decides has had time to load it.
    pub async fn rotate_signing_key(&self) -> Result<Rotation> {
        self.call(Method::POST, &["signing-keys", "rotate"], None).await
    }

    /// Revokes a signing key and every token that it signed. Nothing is revoked if the key was already removed or revoked.
    pub async fn revoke_signing_key(&self, kid: &str) -> Result<Revocation> {
        self.call(Method::DELETE, &["signing-keys", kid], None).await
    }
}
