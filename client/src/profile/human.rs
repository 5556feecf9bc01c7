//! The login of a human user in a profile: the file `NAME.human.json`.
//!
//! Invariant: a login belongs to one control plane. Callers check this with [`HumanLogin::is_for`] before they send its token.

use super::{ProfileError, Profiles, is_same_url, read_if_exists, remove_if_exists};
use crate::oidc::{HumanClaims, IssuedTokens, LoginSettings};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::json;
use std::fs::File;

/// A login of a human user.
#[derive(Debug, Clone)]
pub struct HumanLogin {
    /// The URL of the control plane that receives the token.
    pub url: String,
    /// The issuer and the client of the login. The refresh token is valid only for this client.
    pub settings: LoginSettings,
    /// The tokens.
    pub tokens: IssuedTokens,
}

#[derive(Deserialize)]
struct StoredLogin {
    url: String,
    settings: LoginSettings,
    token: SecretString,
    refresh_token: Option<SecretString>,
}

impl HumanLogin {
    /// Whether the token may be sent to the control plane at `url`.
    pub fn is_for(&self, url: &str) -> bool {
        is_same_url(&self.url, url)
    }
}

impl Profiles {
    /// Reads the login of the human user. A malformed file counts as no login, because the next login replaces it.
    pub fn human_login(&self, name: &str) -> Result<Option<HumanLogin>, ProfileError> {
        let text = read_if_exists(&self.path(name, "human.json")?)?.map(SecretString::from);
        let stored = text.and_then(|text| serde_json::from_str(text.expose_secret()).ok());
        Ok(stored.and_then(|StoredLogin { url, settings, token, refresh_token }| {
            let claims = HumanClaims::parse(&token)?;
            Some(HumanLogin { url, settings, tokens: IssuedTokens { token, refresh_token, claims } })
        }))
    }

    /// Stores the login of the human user.
    pub fn save_human_login(&self, name: &str, login: &HumanLogin) -> Result<(), ProfileError> {
        let HumanLogin { url, settings, tokens: IssuedTokens { token, refresh_token, claims: _ } } = login;
        let stored = json!({
            "url": url,
            "settings": settings,
            "token": token.expose_secret(),
            "refresh_token": refresh_token.as_ref().map(ExposeSecret::expose_secret),
        });
        self.write(&self.path(name, "human.json")?, &stored.to_string())
    }

    /// Deletes the login of the human user. Returns whether one was stored.
    pub fn delete_human_login(&self, name: &str) -> Result<bool, ProfileError> {
        remove_if_exists(&self.path(name, "human.json")?)
    }

    /// Locks the login of the human user until the returned file is dropped. Without the lock, two processes could use
    /// the same refresh token, and issuers end the session if a refresh token is used twice.
    pub fn lock_human_login(&self, name: &str) -> Result<File, ProfileError> {
        self.lock_file(&self.path(name, "human.lock")?)
    }
}
