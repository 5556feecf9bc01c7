//! The calls, each one request: the connection and the errors here, the calls by who makes them.

mod agent;
mod audit;
mod condition;
mod management;
mod place;
mod signing_key;
mod webhook;

pub use agent::{Registered, Tokens};
pub use audit::{Act, ActFilter, Actor, Object};
pub use condition::{Health, Status};
pub use management::{ApiKey, ListedKey, Page, Role, Service};
pub use place::place;
pub use signing_key::{Rotation, SigningKey};
pub use webhook::{NewSecret, NewWebhook, Targets, Webhook, WebhookChange, WebhookDelivery};

use crate::KeyError;
use reqwest::{Method, Url, header::RETRY_AFTER};
use secrecy::{ExposeSecret, SecretString};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::time::Duration;

/// How long a call may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// The status that says that there were more calls than pass.
const TOO_MANY: u16 = 429;

/// Why a call did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The control plane does not answer.
    #[error("cannot reach {url}: {}", innermost(error))]
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
        /// How long to wait before the same is worth asking again, if it says.
        retry_after: Option<Duration>,
    },
    /// The answer is none that we know.
    #[error("the answer of {0} cannot be read: it is none of Countersign's")]
    Unreadable(String),
    /// The URL of the control plane.
    #[error("`{}` is no https URL", place(.0))]
    Url(String),
    /// What should hold the trusted authorities, or the system's.
    #[error("the certificate authorities cannot be used: {0}")]
    Authority(String),
    /// The agent's key.
    #[error(transparent)]
    Key(#[from] KeyError),
}

impl ApiError {
    /// Whether the login is over: a new one is the answer.
    pub fn ends_login(&self) -> bool {
        matches!(self, Self::Refused { status: 401, reason: Some(reason), .. } if reason.starts_with("refresh_"))
    }

    /// How long to wait before the same is worth asking again, if the control plane says.
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { retry_after, .. } => *retry_after,
            Self::Unreachable { .. } | Self::Unreadable(_) | Self::Url(_) | Self::Authority(_) | Self::Key(_) => None,
        }
    }

    /// Whether the control plane cannot answer now, though it may later; too many calls are that, too.
    pub const fn is_outage(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Unreadable(_) => true,
            Self::Refused { status, .. } => *status >= 500 || *status == TOO_MANY,
            Self::Url(_) | Self::Authority(_) | Self::Key(_) => false,
        }
    }
}

/// What the system said, rather than that a request failed.
pub fn innermost(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    // What reqwest says itself ends with the whole URL, and that may hold a secret.
    let text = cause.to_string();
    text.split(" for url (").next().unwrap_or_default().to_owned()
}

/// A control plane.
#[derive(Debug, Clone)]
pub struct Api {
    url: Url,
    http: reqwest::Client,
}

impl Api {
    /// Talks to the control plane at `url`; `authority` is a PEM to trust instead of the system's.
    pub fn new(url: &str, authority: Option<&[u8]>) -> Result<Self, ApiError> {
        let parsed = Url::parse(url).ok().filter(|parsed| parsed.scheme() == "https" && parsed.has_host());
        let parsed = parsed.ok_or_else(|| ApiError::Url(url.to_owned()))?;
        let http = http_client(authority, |http| http.https_only(true))?;
        Ok(Self { url: parsed, http })
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &[&str],
        bearer: Option<&SecretString>,
        body: Option<&Value>,
    ) -> Result<T, ApiError> {
        let mut request = self.http.request(method, self.at(path)?);
        if let Some(body) = body {
            request = request.json(body);
        }
        if let Some(bearer) = bearer {
            request = request.bearer_auth(bearer.expose_secret());
        }
        self.answer(request).await
    }

    async fn answer<T: DeserializeOwned>(&self, request: reqwest::RequestBuilder) -> Result<T, ApiError> {
        let url = place(self.url.as_str());
        let unreachable = |error| ApiError::Unreachable { url: url.clone(), error };
        let response = request.send().await.map_err(unreachable)?;
        let status = response.status();
        if status.is_success() {
            return response.json().await.map_err(|_| ApiError::Unreadable(url));
        }
        let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let body: Value = response.json().await.map_err(|_| ApiError::Unreadable(url))?;
        let text = |pointer| body.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        Err(ApiError::Refused {
            status: status.as_u16(),
            code: text("/error/code").unwrap_or_default(),
            message: text("/error/message").unwrap_or_default(),
            reason: text("/error/details/reason"),
            retry_after: retry_after.map(Duration::from_secs),
        })
    }

    /// Segments are encoded: what a user typed for an id never reaches into another path.
    fn at(&self, path: &[&str]) -> Result<Url, ApiError> {
        let mut url = self.url.clone();
        url.path_segments_mut().map_err(|()| ApiError::Url(self.url.to_string()))?.pop_if_empty().extend(path);
        Ok(url)
    }
}

/// How every client of ours is made; `authority` is a PEM to trust instead of the system's.
pub fn http_client(
    authority: Option<&[u8]>,
    more: impl FnOnce(reqwest::ClientBuilder) -> reqwest::ClientBuilder,
) -> Result<reqwest::Client, ApiError> {
    // Installed already if something else in the process uses TLS.
    let _installed = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let mut http = reqwest::Client::builder()
        // A redirect would take signatures and tokens to whoever it names.
        .redirect(reqwest::redirect::Policy::none())
        .timeout(PATIENCE);
    if let Some(pem) = authority {
        let none = || ApiError::Authority("it holds no certificate in PEM (`-----BEGIN CERTIFICATE-----`)".into());
        let certificates = reqwest::Certificate::from_pem_bundle(pem).map_err(|_| none())?;
        // Nobody would be trusted, and it would look as if the server were to blame.
        if certificates.is_empty() {
            return Err(none());
        }
        http = http.tls_certs_only(certificates);
    }
    more(http).build().map_err(|error| {
        ApiError::Authority(match authority {
            Some(_) => "a certificate in it cannot be read".into(),
            None => innermost(&error),
        })
    })
}
