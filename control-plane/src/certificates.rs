//! The TLS certificate of the API port and the sync port. It is read from files, and replaced when they change; with --dev, it is
//! generated.

use crate::domain::timestamp::format_rfc3339;
use arc_swap::ArcSwap;
use countersign_identity::Timestamp;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose, date_time_ymd};
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

/// Subject alternative names of the development certificate.
const LOOPBACK_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error("{path}: {error}")]
    File { path: PathBuf, error: io::Error },
    /// Contains the setting that names the file.
    #[error("{0}: contains no PEM certificate or private key")]
    Malformed(&'static str),
    #[error("tls.certificate, tls.private_key: {0}")]
    Unusable(#[from] rustls::Error),
    /// The certificate has expired. The start only warns, because the files may be replaced while the process runs.
    #[error("tls.certificate: expired at {}", format_rfc3339(*.0))]
    Expired(Timestamp),
    /// The validity of the certificate begins later. The start only warns.
    #[error("tls.certificate: not valid before {}", format_rfc3339(*.0))]
    NotYetValid(Timestamp),
    #[error("generating the development certificate failed: {0}")]
    Generation(#[from] rcgen::Error),
}

/// A certificate chain and its key, as PEM.
pub struct Certificate {
    pub chain: String,
    pub key: SecretString,
}

impl Certificate {
    /// Reads the configured certificate and private key.
    pub fn read(chain: &Path, key: &Path) -> Result<Self, CertificateError> {
        Ok(Self { chain: read_pem_file(chain)?, key: read_pem_file(key)?.into() })
    }

    /// Generates a certificate for loopback, signed by the development authority in `directory`. A missing authority is created.
    /// Also returns the file of the authority's certificate, which clients must trust.
    pub fn for_development(directory: &Path, year: i32) -> Result<(Self, PathBuf), CertificateError> {
        let (ca_file, ca_key_file) = (directory.join("ca.pem"), directory.join("ca.key"));
        if !ca_key_file.exists() || !ca_file.exists() {
            create_authority(&ca_file, &ca_key_file, year)?;
        }
        let ca_key = SecretString::from(read_pem_file(&ca_key_file)?);
        let ca_key = KeyPair::from_pem(ca_key.expose_secret())?;
        let ca_certificate_params = ca_certificate_params(year);
        let authority = Issuer::from_params(&ca_certificate_params, ca_key);
        let mut params = CertificateParams::new(LOOPBACK_NAMES.map(String::from))?;
        params.not_before = date_time_ymd(year - 1, 1, 1);
        params.not_after = date_time_ymd(year + 2, 1, 1);
        params.distinguished_name.push(DnType::CommonName, "localhost");
        params.extended_key_usages.push(rcgen::ExtendedKeyUsagePurpose::ServerAuth);
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let chain = params.signed_by(&key, &authority)?.pem();
        Ok((Self { chain, key: key.serialize_pem().into() }, ca_file))
    }

    /// Parses the contents of the two files.
    pub fn from_contents(chain: &[u8], key: &[u8]) -> Result<Self, CertificateError> {
        let text = |setting: &'static str, content: &[u8]| {
            let text = std::str::from_utf8(content).map_err(|_| CertificateError::Malformed(setting));
            text.map(str::to_owned)
        };
        Ok(Self { chain: text("tls.certificate", chain)?, key: text("tls.private_key", key)?.into() })
    }

    /// The expiry of the server's own certificate.
    pub fn expires_at(&self) -> Result<Timestamp, CertificateError> {
        Ok(self.validity()?.not_after)
    }

    /// Fails if clients refuse the certificate at the time `now`. Otherwise returns its expiry.
    pub fn check_validity(&self, now: Timestamp) -> Result<Timestamp, CertificateError> {
        let validity = self.validity()?;
        if now < validity.not_before {
            return Err(CertificateError::NotYetValid(validity.not_before));
        }
        if now >= validity.not_after {
            return Err(CertificateError::Expired(validity.not_after));
        }
        Ok(validity.not_after)
    }

    /// The validity of the server's own certificate, the first of the chain. We ignore the validity of the other certificates,
    /// because a chain may end with an expired one that only older clients need.
    fn validity(&self) -> Result<Validity, CertificateError> {
        let chain = CertificateDer::pem_slice_iter(self.chain.as_bytes());
        let times: Option<Vec<_>> = chain.map(|der| validity(&der.ok()?)).collect();
        times.and_then(|times| times.into_iter().next()).ok_or(CertificateError::Malformed("tls.certificate"))
    }

    /// The parsed chain and private key. Fails if they do not belong together.
    fn certified_key(&self) -> Result<CertifiedKey, CertificateError> {
        let malformed = |setting: &'static str| move |_| CertificateError::Malformed(setting);
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(self.chain.as_bytes()).collect();
        let chain = chain.map_err(malformed("tls.certificate"))?;
        if chain.is_empty() {
            return Err(CertificateError::Malformed("tls.certificate"));
        }
        let key = PrivateKeyDer::from_pem_slice(self.key.expose_secret().as_bytes());
        let key = key.map_err(malformed("tls.private_key"))?;
        Ok(CertifiedKey::from_der(chain, key, &rustls::crypto::aws_lc_rs::default_provider())?)
    }
}

/// The certificate and private key for new connections. A TLS handshake reads both at once, so it never combines an old certificate
/// with a new key.
#[derive(Debug)]
pub struct ServedCertificate(ArcSwap<CertifiedKey>);

impl ServedCertificate {
    /// Serves a certificate until [`Self::replace`] is called.
    pub fn new(certificate: &Certificate) -> Result<Arc<Self>, CertificateError> {
        Ok(Arc::new(Self(ArcSwap::from_pointee(certificate.certified_key()?))))
    }

    /// Serves another certificate on new connections, and returns its expiry. Keeps the old one if the new one is invalid, or if
    /// clients would refuse it at the time `now`.
    pub fn replace(&self, certificate: &Certificate, now: Timestamp) -> Result<Timestamp, CertificateError> {
        let key = certificate.certified_key()?;
        let expires_at = certificate.check_validity(now)?;
        self.0.store(Arc::new(key));
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
        Some(self.0.load_full())
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

fn ca_certificate_params(year: i32) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.not_before = date_time_ymd(year - 1, 1, 1);
    params.not_after = date_time_ymd(year + 10, 1, 1);
    params.distinguished_name.push(DnType::CommonName, "Countersign development authority");
    params
}

fn create_authority(file: &Path, key_file: &Path, year: i32) -> Result<(), CertificateError> {
    let key = KeyPair::generate()?;
    let certificate = ca_certificate_params(year).self_signed(&key)?;
    crate::files::write_secret(key_file, key.serialize_pem().as_bytes()).map_err(file_error(key_file))?;
    crate::files::write_atomically(file, certificate.pem().as_bytes(), 0o644).map_err(file_error(file))
}

fn read_pem_file(path: &Path) -> Result<String, CertificateError> {
    std::fs::read_to_string(path).map_err(file_error(path))
}

fn file_error(path: &Path) -> impl FnOnce(io::Error) -> CertificateError {
    let path = path.to_owned();
    move |error| CertificateError::File { path, error }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_seconds(1_800_000_000);

    fn certificate(years: (i32, i32)) -> Certificate {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        (params.not_before, params.not_after) = (date_time_ymd(years.0, 1, 1), date_time_ymd(years.1, 1, 1));
        let key = KeyPair::generate().unwrap();
        Certificate { chain: params.self_signed(&key).unwrap().pem(), key: key.serialize_pem().into() }
    }

    fn served_chain(served: &ServedCertificate) -> Vec<u8> {
        served.0.load().cert[0].to_vec()
    }

    #[test]
    fn only_a_valid_pair_replaces_the_certificate() {
        let (old, new) = (certificate((2020, 2040)), certificate((2021, 2030)));
        let served = ServedCertificate::new(&old).unwrap();
        let before = served_chain(&served);
        let refused = |certificate: &Certificate| served.replace(certificate, NOW).unwrap_err().to_string();
        let mixed = Certificate { chain: new.chain.clone(), key: old.key.clone() };
        assert!(refused(&mixed).contains("KeyMismatch"), "{}", refused(&mixed));
        assert!(refused(&certificate((2020, 2021))).contains("expired at 2021-01-01T00:00:00Z"));
        assert!(refused(&certificate((2039, 2040))).contains("not valid before 2039-01-01T00:00:00Z"));
        let truncated = Certificate { chain: new.chain[..new.chain.len() / 2].to_owned(), key: new.key.clone() };
        assert!(refused(&truncated).contains("no PEM certificate"), "{}", refused(&truncated));
        let empty = Certificate { chain: String::new(), key: new.key.clone() };
        assert!(refused(&empty).contains("no PEM certificate"), "{}", refused(&empty));
        assert_eq!(served_chain(&served), before);
        let expired_last = format!("{}{}", old.chain, certificate((2020, 2021)).chain);
        let expired_last = Certificate { chain: expired_last, key: old.key.clone() };
        assert_eq!(format_rfc3339(served.replace(&expired_last, NOW).unwrap()), "2040-01-01T00:00:00Z");
        assert_eq!(served_chain(&served), before, "the same certificate");
        assert_eq!(format_rfc3339(served.replace(&new, NOW).unwrap()), "2030-01-01T00:00:00Z");
        assert_ne!(served_chain(&served), before);
    }
}
