//! Fetches the keys of an issuer, by OpenID Connect Discovery or from a URL, or reads them from a file.
//!
//! Invariants: a fetch is bounded in time and memory, and keys come only from the configured location or from the `jwks_uri`
//! in the discovery document below the issuer's URL. Redirects are not followed. Errors are texts for the log.

use super::{jwk_set::JwkSet, key_cache::KeySource};
use arc_swap::ArcSwap;
use reqwest::{Certificate, Client, StatusCode, Url, header, redirect::Policy};
use serde::Deserialize;
use std::{fmt::Display, net::IpAddr, path::Path, sync::Arc, time::Duration};
use tokio::io::AsyncReadExt;

/// Timeout of one fetch, including discovery.
const FETCH_TIMEOUT: Duration = Duration::from_secs(4);

/// Timeout of a TCP connection and its TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum size of a document in bytes.
const MAX_DOCUMENT_SIZE: usize = 256 * 1024;

/// Path of the discovery document below the issuer's URL.
const DISCOVERY_PATH: &str = "/.well-known/openid-configuration";

/// The location from which the keys of an issuer are fetched.
pub enum KeyLocation {
    /// At the `jwks_uri` of the issuer's discovery document.
    Discovery {
        /// The `issuer` that the discovery document must have.
        issuer: String,
        client: JwksClient,
    },
    Url {
        url: Url,
        client: JwksClient,
    },
}

/// An HTTP client that fetches discovery documents and JWK sets.
pub struct JwksClient {
    http: ArcSwap<Client>,
    /// Allows `http://` on loopback, for development.
    allow_http_on_loopback: bool,
}

#[derive(Deserialize)]
struct DiscoveryDocument {
    issuer: String,
    jwks_uri: String,
}

impl KeySource for KeyLocation {
    async fn fetch(&self) -> Result<JwkSet, impl Display + Send> {
        let timed_out = |_| Err(format!("fetching the keys took longer than {} s", FETCH_TIMEOUT.as_secs()));
        tokio::time::timeout(FETCH_TIMEOUT, self.fetch_keys()).await.unwrap_or_else(timed_out)
    }
}

impl KeyLocation {
    async fn fetch_keys(&self) -> Result<JwkSet, String> {
        let (location, json) = match self {
            Self::Discovery { issuer, client } => {
                let url = client.discover_jwks_uri(issuer).await?;
                (url.to_string(), client.fetch_document(&url).await?)
            }
            Self::Url { url, client } => (url.to_string(), client.fetch_document(url).await?),
        };
        JwkSet::parse(&json).map_err(|error| format!("{location}: {error}"))
    }

    pub const fn client(&self) -> &JwksClient {
        let (Self::Discovery { client, .. } | Self::Url { client, .. }) = self;
        client
    }
}

impl JwksClient {
    /// Creates a client that trusts the certificate authorities in a PEM file. Without a file, the client trusts the
    /// authorities of the operating system.
    pub fn new(authorities: Option<&[u8]>, allow_http_on_loopback: bool) -> Result<Self, String> {
        Ok(Self { http: ArcSwap::from_pointee(build_client(authorities)?), allow_http_on_loopback })
    }

    /// Trusts other certificate authorities from the next fetch on. If the PEM file is invalid, keeps the previous ones.
    pub fn replace_authorities(&self, authorities: &[u8]) -> Result<(), String> {
        self.http.store(Arc::new(build_client(Some(authorities))?));
        Ok(())
    }

    async fn discover_jwks_uri(&self, issuer: &str) -> Result<Url, String> {
        let location = format!("{}{DISCOVERY_PATH}", issuer.trim_end_matches('/'));
        let malformed = |error: &str| format!("{location}: {error}");
        let json = self.fetch_document(&location.parse().map_err(|_| malformed("not a URL"))?).await?;
        let document = serde_json::from_slice(&json);
        let DiscoveryDocument { issuer: document_issuer, jwks_uri } =
            document.map_err(|_| malformed("must be JSON with `issuer` and `jwks_uri`"))?;
        if document_issuer != issuer {
            return Err(malformed("the document's `issuer` differs from the configured issuer"));
        }
        let jwks_uri: Url = jwks_uri.parse().map_err(|_| malformed("`jwks_uri` is not a URL"))?;
        if jwks_uri.scheme() == "https" || (self.allow_http_on_loopback && is_http_on_loopback(&jwks_uri)) {
            Ok(jwks_uri)
        } else {
            Err(malformed("`jwks_uri` must be an https:// URL"))
        }
    }

    async fn fetch_document(&self, url: &Url) -> Result<Vec<u8>, String> {
        let unreachable = |error: reqwest::Error| format!("{url}: {}", root_cause(&error));
        let request = self.http.load().get(url.clone()).header(header::ACCEPT, "application/json");
        let mut response = request.send().await.map_err(unreachable)?;
        if response.status() != StatusCode::OK {
            return Err(format!("{url}: status {}, expected 200", response.status()));
        }
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(unreachable)? {
            if body.len() + chunk.len() > MAX_DOCUMENT_SIZE {
                return Err(too_large(url));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }
}

fn build_client(authorities: Option<&[u8]>) -> Result<Client, String> {
    let mut builder = Client::builder()
        .redirect(Policy::none())
        .connect_timeout(CONNECT_TIMEOUT)
        .timeout(FETCH_TIMEOUT)
        .pool_idle_timeout(FETCH_TIMEOUT)
        .user_agent(concat!("countersign-control-plane/", env!("CARGO_PKG_VERSION")));
    if let Some(pem) = authorities {
        let no_certificate = || "contains no PEM certificate".to_owned();
        let certificates = Certificate::from_pem_bundle(pem).map_err(|_| no_certificate())?;
        if certificates.is_empty() {
            return Err(no_certificate());
        }
        builder = builder.tls_certs_only(certificates);
    }
    builder.build().map_err(|error| root_cause(&error))
}

fn is_http_on_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    url.scheme() == "http" && (host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback()))
}

/// Reads a file with keys.
pub async fn read_file(path: &Path) -> Result<Vec<u8>, String> {
    let file_error = |error: std::io::Error| format!("{}: {error}", path.display());
    let file = tokio::fs::File::open(path).await.map_err(file_error)?;
    let mut json = Vec::new();
    let limit = u64::try_from(MAX_DOCUMENT_SIZE + 1).unwrap_or(u64::MAX);
    file.take(limit).read_to_end(&mut json).await.map_err(file_error)?;
    if json.len() > MAX_DOCUMENT_SIZE { Err(too_large(&path.display())) } else { Ok(json) }
}

fn too_large(location: &dyn Display) -> String {
    format!("{location}: larger than {MAX_DOCUMENT_SIZE} bytes")
}

/// The innermost cause of an error, for the log. The outer errors only repeat the URL.
fn root_cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}
