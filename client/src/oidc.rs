//! Client of an OIDC issuer: the tokens of human users, by the OAuth 2.0 Device Authorization Grant (RFC 8628).
//!
//! [`OidcClient`] discovers the endpoints of the issuer. `device` starts the grant and polls, `tokens` reads tokens, `refresh`
//! refreshes and revokes them. Invariants: requests go to `https` URLs only, or to a loopback address if the issuer itself has one.
//! Redirects are not followed, the size of a response is limited, and text of the issuer is made printable.

mod device;
mod error;
mod refresh;
mod tokens;

pub use device::DeviceAuthorization;
pub use error::IssuerError;
pub use refresh::Refreshed;
pub use tokens::{HumanClaims, IssuedTokens, TokenKind};

use crate::api::{
    ApiError, Exchange, Observer, http_client, is_loopback, redacted_url, redacted_url_with_port,
    response::{line, optional_line, read_json_up_to},
};
use reqwest::{Response, Url, header};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{path::PathBuf, time::Duration};

/// Maximum size of a response in bytes.
const MAX_RESPONSE_SIZE: usize = 256 * 1024;

/// Path of the discovery document below the issuer's URL.
const DISCOVERY_PATH: &str = "/.well-known/openid-configuration";

/// How the command line logs in at an issuer, and which token the control plane receives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoginSettings {
    /// The `iss` of the issuer, which is also the URL below which its endpoints are discovered.
    pub issuer: String,
    /// The client id of the command line at the issuer.
    pub client_id: String,
    /// The requested scopes, separated by spaces. If `None`, the scopes depend on what the issuer supports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    /// The parameter `audience` of the request, which some issuers require for access tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audience: Option<String>,
    /// The token that the control plane receives.
    pub token: TokenKind,
    /// A PEM file with the CA certificates that are trusted for the issuer. If `None`, the CA certificates of the system are trusted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
}

/// The endpoints and features of an issuer, from its discovery document.
#[derive(Debug, Clone)]
pub struct Endpoints {
    device_authorization: Option<Url>,
    token: Url,
    revocation: Option<Url>,
    scopes: Vec<String>,
}

#[derive(Deserialize)]
struct DiscoveryDocument {
    #[serde(deserialize_with = "line")]
    issuer: String,
    #[serde(default, deserialize_with = "optional_line")]
    token_endpoint: Option<String>,
    #[serde(default, deserialize_with = "optional_line")]
    device_authorization_endpoint: Option<String>,
    #[serde(default, deserialize_with = "optional_line")]
    revocation_endpoint: Option<String>,
    #[serde(default)]
    scopes_supported: Option<Vec<String>>,
}

/// A client of one issuer.
#[derive(Debug, Clone)]
pub struct OidcClient {
    settings: LoginSettings,
    http: reqwest::Client,
    timeout: Duration,
    observer: Option<Observer>,
}

impl OidcClient {
    /// Creates a client. If `authority` is set, the client trusts only the CA certificates in this PEM bundle, otherwise the CA
    /// certificates of the system. `timeout` limits each request. After each request, the client calls `observer`.
    pub fn new(
        settings: LoginSettings,
        authority: Option<&[u8]>,
        timeout: Duration,
        observer: Option<Observer>,
    ) -> Result<Self, IssuerError> {
        let is_valid = |url: &Url| is_secure(url, true) && url.query().is_none() && url.fragment().is_none();
        let has_credentials = |url: &Url| !url.username().is_empty() || url.password().is_some();
        let parsed = Url::parse(&settings.issuer).ok().filter(|url| is_valid(url) && !has_credentials(url));
        let parsed = parsed.ok_or_else(|| IssuerError::Url(redacted_url(&settings.issuer)))?;
        // Requests over plain HTTP go to this machine only, and not through a proxy, which could read them.
        let is_plain = parsed.scheme() == "http";
        let http = http_client(authority, |http| if is_plain { http.no_proxy() } else { http });
        let http = http.map_err(|error| {
            IssuerError::Authority(match error {
                ApiError::CaCertificates(problem) => problem,
                error => error.to_string(),
            })
        })?;
        Ok(Self { settings, http, timeout, observer })
    }

    /// The settings of this client.
    pub const fn settings(&self) -> &LoginSettings {
        &self.settings
    }

    /// Reads the discovery document of the issuer (OpenID Connect Discovery 1.0). The `issuer` of the document must be
    /// exactly the expected one.
    pub async fn discover(&self) -> Result<Endpoints, IssuerError> {
        let issuer = &self.settings.issuer;
        let location = format!("{}{DISCOVERY_PATH}", issuer.trim_end_matches('/'));
        let url = Url::parse(&location).map_err(|_| IssuerError::Url(redacted_url(issuer)))?;
        let response = self.execute(&url, self.http.get(url.clone())).await?;
        if !response.status().is_success() {
            return Err(IssuerError::Status { url: redacted_url_with_port(&url), status: response.status().as_u16() });
        }
        let document: DiscoveryDocument = read_json(&url, response).await?;
        if document.issuer != *issuer {
            return Err(IssuerError::OtherIssuer { expected: issuer.clone(), found: document.issuer });
        }
        self.endpoints(document)
    }

    fn endpoints(&self, document: DiscoveryDocument) -> Result<Endpoints, IssuerError> {
        let allow_loopback = Url::parse(&self.settings.issuer).is_ok_and(|issuer| issuer.scheme() == "http");
        let endpoint = |name: &'static str, text: Option<String>| {
            let parse = |text: String| Url::parse(&text).ok().filter(|url| is_secure(url, allow_loopback));
            text.map(|text| parse(text).ok_or(IssuerError::Endpoint(name))).transpose()
        };
        Ok(Endpoints {
            device_authorization: endpoint("device_authorization_endpoint", document.device_authorization_endpoint)?,
            token: endpoint("token_endpoint", document.token_endpoint)?
                .ok_or(IssuerError::Missing("token_endpoint"))?,
            revocation: endpoint("revocation_endpoint", document.revocation_endpoint)?,
            scopes: document.scopes_supported.unwrap_or_default(),
        })
    }

    /// Sends a form with the client id. Returns the response even if its status is an error.
    async fn post(&self, url: &Url, fields: &[(&str, &str)]) -> Result<Response, IssuerError> {
        let mut form = form_urlencoded::Serializer::new(String::new());
        form.append_pair("client_id", &self.settings.client_id).extend_pairs(fields);
        let request = self.http.post(url.clone()).header(header::CONTENT_TYPE, "application/x-www-form-urlencoded");
        self.execute(url, request.body(form.finish())).await
    }

    async fn execute(&self, url: &Url, request: reqwest::RequestBuilder) -> Result<Response, IssuerError> {
        let url = redacted_url_with_port(url);
        let unreachable = |error| IssuerError::Unreachable { url: url.clone(), error };
        let request = request.header(header::ACCEPT, "application/json").timeout(self.timeout);
        let request = request.build().map_err(unreachable)?;
        let response = Exchange::execute(&self.http, request, self.observer).await.map_err(unreachable)?;
        if response.status().is_redirection() {
            return Err(IssuerError::Redirect(url));
        }
        Ok(response)
    }
}

impl Endpoints {
    /// The scopes of a login without configured scopes: `openid`, and if the issuer supports them, the scopes for the user's name, the
    /// e-mail address and a refresh token.
    fn default_scope(&self) -> String {
        let is_supported = |scope: &&str| self.scopes.iter().any(|supported| supported == scope);
        let optional = ["profile", "email", "offline_access"].into_iter().filter(is_supported);
        std::iter::once("openid").chain(optional).collect::<Vec<_>>().join(" ")
    }
}

/// Whether the URL is `https`, or plain `http` to a loopback address if that is allowed.
fn is_secure(url: &Url, allow_loopback: bool) -> bool {
    url.has_host() && (url.scheme() == "https" || (allow_loopback && url.scheme() == "http" && is_loopback(url)))
}

async fn read_json<T: DeserializeOwned>(url: &Url, response: Response) -> Result<T, IssuerError> {
    let body = read_json_up_to(response, MAX_RESPONSE_SIZE).await;
    body.ok_or_else(|| IssuerError::Unreadable(redacted_url_with_port(url)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(issuer: &str) -> Result<OidcClient, IssuerError> {
        let issuer = issuer.to_owned();
        let client_id = "cli".to_owned();
        let settings =
            LoginSettings { issuer, client_id, scope: None, audience: None, token: TokenKind::IdToken, ca: None };
        OidcClient::new(settings, None, Duration::from_secs(1), None)
    }

    fn document(endpoint: &str) -> DiscoveryDocument {
        DiscoveryDocument {
            issuer: String::new(),
            token_endpoint: Some(endpoint.to_owned()),
            device_authorization_endpoint: None,
            revocation_endpoint: None,
            scopes_supported: Some(["email", "offline_access", "other"].map(str::to_owned).to_vec()),
        }
    }

    #[test]
    fn issuers_are_https_or_on_loopback() {
        for (url, is_valid) in [
            ("https://issuer.example/realms/corp", true),
            ("http://127.0.0.1:8080", true),
            ("http://[::1]:8080/", true),
            ("http://localhost", true),
            ("http://issuer.example", false),
            ("http://127.0.0.1.issuer.example", false),
            ("https://user:secret@issuer.example", false),
            ("https://issuer.example/?tenant=1", false),
            ("issuer.example", false),
            ("file:///etc/passwd", false),
        ] {
            assert_eq!(client(url).is_ok(), is_valid, "{url}");
        }
    }

    #[test]
    fn endpoints_of_an_https_issuer_are_https() {
        let endpoints = |issuer: &str, endpoint: &str| client(issuer).unwrap().endpoints(document(endpoint));
        assert!(endpoints("https://issuer.example", "https://other.example/token").is_ok());
        assert!(endpoints("http://127.0.0.1", "http://127.0.0.1/token").is_ok());
        for endpoint in ["http://127.0.0.1/token", "http://issuer.example/token", "/token", "", "javascript:1"] {
            assert!(endpoints("https://issuer.example", endpoint).is_err(), "{endpoint}");
        }
    }

    #[test]
    fn default_scopes_are_those_that_the_issuer_supports() {
        let client = client("https://issuer.example").unwrap();
        let endpoints = client.endpoints(document("https://issuer.example/token")).unwrap();
        assert_eq!(endpoints.default_scope(), "openid email offline_access");
    }
}
