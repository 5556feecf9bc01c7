//! Client of the HTTP API of the control plane, with one method per request.
//!
//! The module `api` contains the connection; its submodules contain the error type and the requests, by subject.

mod agent;
mod audit;
mod credential;
mod error;
mod exchange;
mod health;
mod management;
mod oauth;
mod own_agent;
mod page;
mod redact;
pub(crate) mod response;
mod sidecar;
mod signing_key;
mod transfer;
mod webhook;

pub use agent::{RegisteredAgent, Tokens};
pub use audit::{AuditActor, AuditEntry, AuditFilter, AuditObject};
pub use credential::{HumanApi, ServiceApi};
pub use error::{ApiError, ErrorDetails, escape_unprintable, innermost, replace_unprintable, requirement};
pub use exchange::{Exchange, Observer};
pub use health::{Health, Status};
pub use management::{
    AgentFilter, AgentWithRoles, AssignedRole, AssignmentChange, ChangedRecord, HumanUser, ListedKey, NewApiKey,
    NewKeyProperties, Revocation, Role, RoleAssignment, RoleChange, Service, ServiceChange,
};
pub use oauth::{ServerMetadata, TokenRequest};
pub use own_agent::{Admission, HeldRole, ListedAgent, ServiceOfAgent};
pub use page::{Listing, Page, PageStart, all_pages, items_up_to};
pub use redact::{begins_like_secret, is_loopback, redacted_url, redacted_url_with_port};
pub use sidecar::{Enforcement, LONGEST_ENFORCEMENT_WAIT, Sidecar};
pub use signing_key::{Rotation, SigningKey};
pub use transfer::ServiceTransfer;
pub use webhook::{NewSecret, NewWebhook, Webhook, WebhookApi, WebhookChange, WebhookDelivery, WebhookScope};

use reqwest::{Method, Response, Url};
use response::read_json;
use secrecy::{ExposeSecret, SecretString};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::time::Duration;

type Result<T, E = ApiError> = std::result::Result<T, E>;

/// The default timeout from the start of a request to the end of its response.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// A client of one control plane.
#[derive(Debug, Clone)]
pub struct Api {
    url: Url,
    http: reqwest::Client,
    timeout: Duration,
    observer: Option<Observer>,
}

impl Api {
    /// Creates a client for the control plane at `url`. If `authority` is set, the client trusts only the CA
    /// certificates in this PEM bundle, otherwise the CA certificates of the system.
    pub fn new(url: &str, authority: Option<&[u8]>) -> Result<Self> {
        let parsed = Url::parse(url).ok().filter(|parsed| parsed.scheme() == "https" && parsed.has_host());
        let parsed = parsed.ok_or_else(|| ApiError::Url(redacted_url(url)))?;
        let http = http_client(authority, |http| http.https_only(true))?;
        Ok(Self { url: parsed, http, timeout: REQUEST_TIMEOUT, observer: None })
    }

    /// Sets the timeout of each request. The default timeout is 30 seconds.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Calls `observer` after each request with its method, URL and result.
    #[must_use]
    pub fn with_observer(self, observer: Observer) -> Self {
        Self { observer: Some(observer), ..self }
    }

    /// A client for the requests of a human user.
    pub fn human(&self, token: &SecretString) -> HumanApi {
        HumanApi { api: self.clone(), token: token.clone() }
    }

    /// A client for requests about a service. The credential is an API key of the service, or the token of a human user.
    pub fn service(&self, id: &str, credential: &SecretString) -> ServiceApi {
        ServiceApi { api: self.clone(), id: id.to_owned(), credential: credential.clone() }
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &[&str],
        bearer: Option<&SecretString>,
        body: Option<&Value>,
    ) -> Result<T> {
        let mut request = self.http.request(method, self.endpoint(path)?);
        if let Some(body) = body {
            request = request.json(body);
        }
        if let Some(bearer) = bearer {
            request = request.bearer_auth(bearer.expose_secret());
        }
        self.send(request).await
    }

    /// Sends a request and parses the body of a 2xx response. A response with another status becomes [`ApiError::Refused`].
    async fn send<T: DeserializeOwned>(&self, request: reqwest::RequestBuilder) -> Result<T> {
        let response = self.execute(request).await?;
        let url = || redacted_url(self.url.as_str());
        if response.status().is_success() {
            return read_json(response).await.ok_or_else(|| ApiError::Unreadable(url()));
        }
        Err(ApiError::from_response(response).await.unwrap_or_else(|| ApiError::Unreadable(url())))
    }

    /// Sends a request and returns its response, whatever its status is.
    async fn execute(&self, request: reqwest::RequestBuilder) -> Result<Response> {
        let unreachable = |error| ApiError::Unreachable { url: redacted_url_with_port(&self.url), error };
        let request = request.timeout(self.timeout).build().map_err(unreachable)?;
        Exchange::execute(&self.http, request, self.observer).await.map_err(unreachable)
    }

    /// The URL of a path. Segments are percent-encoded, so that an id from a user cannot reach another path.
    fn endpoint(&self, path: &[&str]) -> Result<Url> {
        let mut url = self.url.clone();
        url.path_segments_mut().map_err(|()| ApiError::Url(self.url.to_string()))?.pop_if_empty().extend(path);
        Ok(url)
    }
}

/// Builds an HTTP client with the settings that all clients of this crate share. If `authority` is set, the client trusts only the CA
/// certificates in this PEM bundle, otherwise the CA certificates of the system. The client has no timeout: its caller sets one.
pub fn http_client(
    authority: Option<&[u8]>,
    configure: impl FnOnce(reqwest::ClientBuilder) -> reqwest::ClientBuilder,
) -> Result<reqwest::Client> {
    // The cryptographic provider of rustls can be installed once per process. An error says that it is installed already.
    let _already_installed = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let mut http = reqwest::Client::builder()
        // If the client followed a redirect, it would send signatures and tokens to the host in the redirect.
        .redirect(reqwest::redirect::Policy::none());
    if let Some(pem) = authority {
        let no_certificate =
            || ApiError::CaCertificates("the file contains no PEM certificate (`-----BEGIN CERTIFICATE-----`)".into());
        let certificates = reqwest::Certificate::from_pem_bundle(pem).map_err(|_| no_certificate())?;
        // With an empty list, the client would refuse every server, and its error would not say why.
        if certificates.is_empty() {
            return Err(no_certificate());
        }
        http = http.tls_certs_only(certificates);
    }
    configure(http).build().map_err(|error| {
        ApiError::CaCertificates(match authority {
            Some(_) => "a certificate in the file cannot be parsed".into(),
            None => innermost(&error),
        })
    })
}
