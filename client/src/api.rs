//! The calls of an agent, each one request.

use crate::{KeyError, PrivateKey};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use std::time::Duration;

/// How long a call may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Why a call did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The control plane does not answer.
    #[error("cannot reach {url}: {error}")]
    Unreachable {
        /// The URL.
        url: String,
        /// What went wrong.
        error: reqwest::Error,
    },
    /// The control plane says no.
    #[error("{status} {code}: {message}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// The error code.
        code: String,
        /// One sentence.
        message: String,
        /// The reason, if there is one.
        reason: Option<String>,
    },
    /// The answer is none that we know.
    #[error("the answer of {0} cannot be read")]
    Unreadable(String),
    /// The trusted authority's file.
    #[error("the certificate authority cannot be used: {0}")]
    Authority(reqwest::Error),
    /// The agent's key.
    #[error(transparent)]
    Key(#[from] KeyError),
}

/// A token pair.
#[derive(Debug, Deserialize)]
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

/// A control plane.
#[derive(Debug, Clone)]
pub struct Api {
    url: String,
    http: reqwest::Client,
}

impl Api {
    /// Talks to the control plane at `url`; `authority` is a PEM to trust instead of the system's.
    pub fn new(url: &str, authority: Option<&[u8]>) -> Result<Self, ApiError> {
        // Installed already if something else in the process uses TLS.
        let _installed = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let mut http = reqwest::Client::builder()
            .https_only(true)
            // A redirect would take signatures and tokens to whoever it names.
            .redirect(reqwest::redirect::Policy::none())
            .timeout(PATIENCE);
        if let Some(pem) = authority {
            let certificates = reqwest::Certificate::from_pem_bundle(pem).map_err(ApiError::Authority)?;
            http = http.tls_certs_only(certificates);
        }
        let http = http.build().map_err(ApiError::Authority)?;
        Ok(Self { url: url.trim_end_matches('/').to_owned(), http })
    }

    /// Registers the public half of a key; `human` is a person's token, where registration is not public.
    pub async fn register(
        &self,
        key: &PrivateKey,
        email: &str,
        name: &str,
        human: Option<&SecretString>,
    ) -> Result<Registered, ApiError> {
        let body = json!({ "email": email, "name": name, "publicKey": key.public_pem()? });
        self.post("/auth/register", &body, human).await
    }

    /// Logs in: asks for a challenge, signs it, sends the signature.
    pub async fn login(&self, key: &PrivateKey, agent: &str, service: Option<&str>) -> Result<Tokens, ApiError> {
        let asked = json!({ "agentId": agent, "serviceId": service });
        let challenge: Challenge = self.post("/auth/challenge", &asked, None).await?;
        let answer = json!({ "challengeId": challenge.challenge_id, "signature": key.sign(&challenge.nonce) });
        self.post("/auth/authenticate", &answer, None).await
    }

    /// Replaces a token pair.
    pub async fn refresh(&self, tokens: &Tokens) -> Result<Tokens, ApiError> {
        let body = json!({ "refreshToken": tokens.refresh_token.expose_secret() });
        self.post("/auth/refresh", &body, None).await
    }

    async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &Value,
        bearer: Option<&SecretString>,
    ) -> Result<T, ApiError> {
        let url = format!("{}{path}", self.url);
        let unreachable = |error| ApiError::Unreachable { url: url.clone(), error };
        let mut request = self.http.post(&url).json(body);
        if let Some(bearer) = bearer {
            request = request.bearer_auth(bearer.expose_secret());
        }
        let response = request.send().await.map_err(unreachable)?;
        let status = response.status();
        if status.is_success() {
            return response.json().await.map_err(|_| ApiError::Unreadable(url));
        }
        let body: Value = response.json().await.map_err(|_| ApiError::Unreadable(url))?;
        let text = |pointer| body.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        Err(ApiError::Refused {
            status: status.as_u16(),
            code: text("/error/code").unwrap_or_default(),
            message: text("/error/message").unwrap_or_default(),
            reason: text("/error/details/reason"),
        })
    }
}
