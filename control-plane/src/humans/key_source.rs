//! Where the keys of an issuer come from: discovered (OpenID Connect Discovery), at a URL, or in a file.
//!
//! Whatever the other side does, a fetch ends soon and takes little memory. Redirects are not followed: where
//! keys are is what the operator said, or the document at the issuer's own URL.

use super::{key_set::KeySet, keys::Source};
use reqwest::{Certificate, Client, StatusCode, Url, header, redirect::Policy};
use serde::Deserialize;
use std::{fmt::Display, net::IpAddr, path::PathBuf, time::Duration};
use tokio::io::AsyncReadExt;

/// For everything that one fetch does.
const FETCH_TIMEOUT: Duration = Duration::from_secs(4);

/// For a connection and its TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// The largest document that is read, in bytes.
const LARGEST: usize = 256 * 1024;

/// Below the issuer's URL.
const DISCOVERY: &str = "/.well-known/openid-configuration";

/// Why keys cannot be had; the text is for the log.
#[derive(Debug, thiserror::Error)]
pub enum OriginError {
    /// No answer, or not one in time.
    #[error("{url}: {error}")]
    Unreachable {
        /// The URL.
        url: Url,
        /// The innermost cause.
        error: String,
    },
    /// Not 200. A redirect is one of these.
    #[error("{url}: status {status}, and it must be 200")]
    Status {
        /// The URL.
        url: Url,
        /// What it answered.
        status: StatusCode,
    },
    /// Larger than [`LARGEST`].
    #[error("{0}: larger than {LARGEST} bytes")]
    TooLarge(String),
    /// Not what is expected there.
    #[error("{place}: {error}")]
    Malformed {
        /// The URL or file.
        place: String,
        /// What is wrong with it.
        error: String,
    },
    /// All together took too long.
    #[error("no keys after {} s", FETCH_TIMEOUT.as_secs())]
    TimedOut,
    /// A file that cannot be read.
    #[error("{path}: {error}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// The certificates of the platform or of the operator's file are none.
    #[error("{0}")]
    Certificates(String),
}

/// Where the keys of an issuer are.
pub enum KeysAt {
    /// Where the document below the issuer's URL says.
    Discovery {
        /// The issuer, exactly as that document must name it.
        issuer: String,
        /// Who fetches.
        web: Web,
    },
    /// At this URL.
    Url {
        /// The URL.
        url: Url,
        /// Who fetches.
        web: Web,
    },
    /// In this file.
    File(PathBuf),
}

/// A client that fetches small documents from one issuer.
pub struct Web {
    client: Client,
    plain_on_loopback: bool,
}

#[derive(Deserialize)]
struct Discovered {
    issuer: String,
    jwks_uri: String,
}

impl Source for KeysAt {
    async fn fetch(&self) -> Result<KeySet, impl Display + Send> {
        tokio::time::timeout(FETCH_TIMEOUT, self.key_set()).await.unwrap_or(Err(OriginError::TimedOut))
    }
}

impl KeysAt {
    async fn key_set(&self) -> Result<KeySet, OriginError> {
        let (place, json) = match self {
            Self::Discovery { issuer, web } => {
                let url = web.discover(issuer).await?;
                (url.to_string(), web.get(&url).await?)
            }
            Self::Url { url, web } => (url.to_string(), web.get(url).await?),
            Self::File(path) => (path.display().to_string(), read(path).await?),
        };
        KeySet::read(&json).map_err(|error| OriginError::Malformed { place, error: error.to_string() })
    }

    /// Reads a file once, so that a wrong one stops the start. What is fetched may well be away at the start.
    pub async fn check(&self) -> Result<(), OriginError> {
        match self {
            Self::File(_) => self.key_set().await.map(drop),
            Self::Discovery { .. } | Self::Url { .. } => Ok(()),
        }
    }
}

impl Web {
    /// A client that trusts the authorities in this PEM, or else those of the platform.
    pub fn new(authorities: Option<&[u8]>, plain_on_loopback: bool) -> Result<Self, OriginError> {
        let mut builder = Client::builder()
            .redirect(Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(FETCH_TIMEOUT)
            .pool_idle_timeout(FETCH_TIMEOUT)
            .user_agent(concat!("countersign-control-plane/", env!("CARGO_PKG_VERSION")));
        if let Some(pem) = authorities {
            let none = || OriginError::Certificates("holds no certificate in PEM".to_owned());
            let certificates = Certificate::from_pem_bundle(pem).map_err(|_| none())?;
            if certificates.is_empty() {
                return Err(none());
            }
            builder = builder.tls_certs_only(certificates);
        }
        let client = builder.build().map_err(|error| OriginError::Certificates(innermost(&error)))?;
        Ok(Self { client, plain_on_loopback })
    }

    async fn discover(&self, issuer: &str) -> Result<Url, OriginError> {
        let place = format!("{}{DISCOVERY}", issuer.trim_end_matches('/'));
        let malformed = |error: &str| OriginError::Malformed { place: place.clone(), error: error.to_owned() };
        let json = self.get(&place.parse().map_err(|_| malformed("is no URL"))?).await?;
        let discovered = serde_json::from_slice(&json);
        let Discovered { issuer: named, jwks_uri } =
            discovered.map_err(|_| malformed("must be JSON with `issuer` and `jwks_uri`"))?;
        if named != issuer {
            return Err(malformed("is the document of another issuer"));
        }
        let jwks_uri: Url = jwks_uri.parse().map_err(|_| malformed("`jwks_uri` is no URL"))?;
        if jwks_uri.scheme() == "https" || (self.plain_on_loopback && is_plain_on_loopback(&jwks_uri)) {
            Ok(jwks_uri)
        } else {
            Err(malformed("`jwks_uri` must be an https:// URL"))
        }
    }

    async fn get(&self, url: &Url) -> Result<Vec<u8>, OriginError> {
        let unreachable =
            |error: reqwest::Error| OriginError::Unreachable { url: url.clone(), error: innermost(&error) };
        let request = self.client.get(url.clone()).header(header::ACCEPT, "application/json");
        let mut response = request.send().await.map_err(unreachable)?;
        if response.status() != StatusCode::OK {
            return Err(OriginError::Status { url: url.clone(), status: response.status() });
        }
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(unreachable)? {
            if body.len() + chunk.len() > LARGEST {
                return Err(OriginError::TooLarge(url.to_string()));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }
}

fn is_plain_on_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    url.scheme() == "http" && (host == "localhost" || host.parse().is_ok_and(|at: IpAddr| at.is_loopback()))
}

async fn read(path: &PathBuf) -> Result<Vec<u8>, OriginError> {
    let failed = |error| OriginError::File { path: path.clone(), error };
    let file = tokio::fs::File::open(path).await.map_err(failed)?;
    let mut json = Vec::new();
    let limit = u64::try_from(LARGEST + 1).unwrap_or(u64::MAX);
    file.take(limit).read_to_end(&mut json).await.map_err(failed)?;
    if json.len() > LARGEST { Err(OriginError::TooLarge(path.display().to_string())) } else { Ok(json) }
}

/// What went wrong in the end; the errors around it repeat the URL.
fn innermost(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}
