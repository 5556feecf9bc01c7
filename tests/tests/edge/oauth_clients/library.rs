//! The trait through which tests use each OAuth library in the same way.

use serde::Deserialize;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The environment of an agent that uses an OAuth library.
pub struct Settings {
    /// Issuer of the control plane.
    pub issuer: String,
    /// Id of the agent.
    pub agent: String,
    /// The private key of the agent, in PKCS#8 PEM.
    pub key_file: PathBuf,
    /// Path of the certificate authority of the control plane.
    pub authority: PathBuf,
}

/// An error that a library got from the control plane: `error` and `error_description`.
#[derive(Debug, PartialEq, Eq, Deserialize)]
pub struct OAuthError {
    pub error: String,
    #[serde(rename = "error_description")]
    pub description: String,
}

/// A response of the token endpoint, as a library returns it.
#[derive(Debug, Deserialize)]
pub struct Tokens {
    #[serde(rename = "access_token")]
    pub access: String,
    #[serde(rename = "refresh_token")]
    pub refresh: String,
    pub scope: String,
}

/// The response of a service, with the parameters of its `WWW-Authenticate`, as a library reads them.
#[derive(Debug, Deserialize)]
pub struct Answer {
    pub status: u16,
    pub challenge: Option<Value>,
    pub text: String,
}

/// A resource and its authorization server, as a library finds them.
#[derive(Debug, PartialEq, Eq, Deserialize)]
pub struct Discovered {
    pub resource: String,
    pub issuer: String,
}

/// An OAuth library that an agent uses.
pub trait Library {
    /// Finds the authorization server of a service.
    async fn discover(&self, url: &str) -> Discovered;

    /// Requests tokens with a key in PKCS#8 PEM.
    async fn token_with(&self, key: &Path, resource: &str, scope: Option<&str>) -> Result<Tokens, OAuthError>;

    /// Requests tokens with the key of the agent.
    async fn token(&self, resource: &str, scope: Option<&str>) -> Result<Tokens, OAuthError>;

    /// Requests the next tokens of a session.
    async fn refresh(&self, refresh_token: &str) -> Result<Tokens, OAuthError>;

    /// Revokes an access token.
    async fn revoke(&self, access_token: &str);

    /// Calls a service.
    async fn call(&self, url: &str, access_token: Option<&str>) -> Answer;
}
