//! The TLS certificate that the ports of a server present. It is read from files, and replaced when they change.
//!
//! Both servers name the files in `tls.certificate` and `tls.private_key`. Invariant: a port never combines the certificate of one
//! pair of files with the private key of another.

use crate::{
    Clock,
    file_reload::{FileContents, LoadContents, LoadedFiles},
};
use arc_swap::ArcSwap;
use countersign_identity::Timestamp;
use prometheus::IntGauge;
use rustls::{
    ServerConfig,
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use secrecy::{ExposeSecret, SecretString};
use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

/// The setting that names the file with the certificate chain.
const CERTIFICATE: &str = "tls.certificate";

/// The setting that names the file with the private key.
const PRIVATE_KEY: &str = "tls.private_key";

/// Why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{setting}: {problem}")]
pub struct CertificateError {
    /// The setting that names the file.
    pub setting: &'static str,
    /// What is wrong with the file.
    pub problem: CertificateProblem,
}

/// What is wrong with a file of a certificate.
#[derive(Debug, thiserror::Error)]
pub enum CertificateProblem {
    /// The file cannot be read.
    #[error("{path}: {error}")]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        error: io::Error,
    },
    /// The file does not contain what it must.
    #[error("contains no PEM certificate or private key")]
    Malformed,
    /// The certificate and the private key do not belong together, or their kind is not supported.
    #[error("{0}")]
    Unusable(rustls::Error),
    /// The certificate has expired. The start only warns, because the files may be replaced while the process runs.
    #[error("expired at {}", rfc3339(*.0))]
    Expired(Timestamp),
    /// The validity of the certificate begins later. The start only warns.
    #[error("not valid before {}", rfc3339(*.0))]
    NotYetValid(Timestamp),
}

impl CertificateProblem {
    fn of(self, setting: &'static str) -> CertificateError {
        CertificateError { setting, problem: self }
    }
}

/// A certificate chain and its key, as PEM.
#[derive(Debug)]
pub struct Certificate {
    /// The certificate of the server, and then the certificates of the authorities between it and the root.
    pub chain: String,
    /// The private key.
    pub key: SecretString,
}

impl Certificate {
    /// Reads the configured certificate and private key.
    pub fn read(chain: &Path, key: &Path) -> Result<Self, CertificateError> {
        Ok(Self { chain: read_pem_file(CERTIFICATE, chain)?, key: read_pem_file(PRIVATE_KEY, key)?.into() })
    }

    /// Parses the contents of the two files.
    fn from_contents(chain: &[u8], key: &[u8]) -> Result<Self, CertificateError> {
        let text = |setting: &'static str, content: &[u8]| {
            let text = std::str::from_utf8(content).map_err(|_| CertificateProblem::Malformed.of(setting));
            text.map(str::to_owned)
        };
        Ok(Self { chain: text(CERTIFICATE, chain)?, key: text(PRIVATE_KEY, key)?.into() })
    }

    /// The files from which this certificate was read, for their reloader.
    pub fn files(&self, chain: &Path, key: &Path) -> LoadedFiles {
        let contents = [(chain, self.chain.as_bytes()), (key, self.key.expose_secret().as_bytes())];
        LoadedFiles::new(CERTIFICATE, &contents)
    }

    /// Fails if a server cannot present this certificate.
    pub fn check(&self) -> Result<(), CertificateError> {
        self.validity()?;
        self.certified_key().map(drop)
    }

    /// Fails if clients refuse the certificate at the time `now`. Otherwise returns its expiry.
    fn check_validity(&self, now: Timestamp) -> Result<Timestamp, CertificateError> {
        let validity = self.validity()?;
        if now < validity.not_before {
            return Err(CertificateProblem::NotYetValid(validity.not_before).of(CERTIFICATE));
        }
        if now >= validity.not_after {
            return Err(CertificateProblem::Expired(validity.not_after).of(CERTIFICATE));
        }
        Ok(validity.not_after)
    }

    /// The validity of the server's own certificate, the first of the chain. We ignore the validity of the other certificates,
    /// because a chain may end with an expired one that only older clients need.
    fn validity(&self) -> Result<Validity, CertificateError> {
        let chain = CertificateDer::pem_slice_iter(self.chain.as_bytes());
        let times: Option<Vec<_>> = chain.map(|der| validity(&der.ok()?)).collect();
        let own = times.and_then(|times| times.into_iter().next());
        own.ok_or_else(|| CertificateProblem::Malformed.of(CERTIFICATE))
    }

    /// The parsed chain and private key. Fails if they do not belong together.
    fn certified_key(&self) -> Result<CertifiedKey, CertificateError> {
        let malformed = |setting: &'static str| move |_| CertificateProblem::Malformed.of(setting);
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(self.chain.as_bytes()).collect();
        let chain = chain.map_err(malformed(CERTIFICATE))?;
        if chain.is_empty() {
            return Err(CertificateProblem::Malformed.of(CERTIFICATE));
        }
        let key = PrivateKeyDer::from_pem_slice(self.key.expose_secret().as_bytes());
        let key = key.map_err(malformed(PRIVATE_KEY))?;
        let certified = CertifiedKey::from_der(chain, key, &rustls::crypto::aws_lc_rs::default_provider());
        certified.map_err(|error| CertificateProblem::Unusable(error).of("tls.certificate, tls.private_key"))
    }
}

/// The certificate and private key for new connections. A TLS handshake reads both at once, so it never combines an old certificate
/// with a new key.
#[derive(Debug)]
pub struct ServedCertificate {
    key: ArcSwap<CertifiedKey>,
    /// The metric with the expiry of the certificate.
    expiry: IntGauge,
}

impl ServedCertificate {
    /// Serves a certificate until its files change. Logs a warning if clients refuse it at the time `now`.
    pub fn new(certificate: &Certificate, expiry: IntGauge, now: Timestamp) -> Result<Arc<Self>, CertificateError> {
        let key = certificate.certified_key()?;
        expiry.set(certificate.validity()?.not_after.seconds());
        if let Err(error) = certificate.check_validity(now) {
            tracing::warn!(%error, "clients refuse this certificate: replace the files; no restart is needed");
        }
        Ok(Arc::new(Self { key: ArcSwap::from_pointee(key), expiry }))
    }

    /// Serves the certificate of changed files, for the reloader of [`Certificate::files`].
    pub fn load_changed_files(self: &Arc<Self>, clock: Arc<dyn Clock>) -> LoadContents {
        let served = Arc::clone(self);
        Box::new(move |contents: &FileContents| {
            let [chain, key] = contents.as_slice() else { return Err("two files are expected".to_owned()) };
            let expires_at = Certificate::from_contents(chain, key)
                .and_then(|certificate| served.replace(&certificate, clock.now()))
                .map_err(|error| error.to_string())?;
            Ok(format!("a certificate that expires at {}", rfc3339(expires_at)))
        })
    }

    /// Serves another certificate on new connections, and returns its expiry. Keeps the old one if the new one is invalid, or if
    /// clients would refuse it at the time `now`.
    fn replace(&self, certificate: &Certificate, now: Timestamp) -> Result<Timestamp, CertificateError> {
        let key = certificate.certified_key()?;
        let expires_at = certificate.check_validity(now)?;
        self.key.store(Arc::new(key));
        self.expiry.set(expires_at.seconds());
        Ok(expires_at)
    }

    /// The configuration of a port, with the protocols that it offers (ALPN). Replacing the certificate does not replace the
    /// configuration, which stores the TLS sessions. So clients can resume their sessions after a replacement.
    pub fn server_config(self: &Arc<Self>, protocols: &[&[u8]]) -> Arc<ServerConfig> {
        let mut config = ServerConfig::builder().with_no_client_auth().with_cert_resolver(Arc::<Self>::clone(self));
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        Arc::new(config)
    }
}

impl ResolvesServerCert for ServedCertificate {
    fn resolve(&self, _client_hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.key.load_full())
    }
}

struct Validity {
    not_before: Timestamp,
    not_after: Timestamp,
}

/// The validity of a certificate (RFC 5280, section 4.1.2.5).
fn validity(der: &[u8]) -> Option<Validity> {
    let (_, certificate) = x509_parser::parse_x509_certificate(der).ok()?;
    let validity = certificate.validity();
    let time = |time: x509_parser::time::ASN1Time| Timestamp::from_seconds(time.timestamp());
    Some(Validity { not_before: time(validity.not_before), not_after: time(validity.not_after) })
}

/// A time in RFC 3339, or in Unix seconds if its year does not fit.
fn rfc3339(at: Timestamp) -> String {
    jiff::Timestamp::from_microsecond(at.micros()).map_or_else(|_| at.seconds().to_string(), |at| at.to_string())
}

fn read_pem_file(setting: &'static str, path: &Path) -> Result<String, CertificateError> {
    let unreadable = |error| CertificateProblem::File { path: path.to_owned(), error }.of(setting);
    std::fs::read_to_string(path).map_err(unreadable)
}

#[cfg(test)]
mod tests;
