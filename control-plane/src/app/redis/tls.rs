//! Loads the certificates for TLS to Redis. The certificate files are read and checked at start-up and when they change, so
//! that an error names the setting: at a connection, invalid certificates would look like an unavailable Redis.

use super::super::{AppError, install_crypto_provider};
use crate::{config::RedisTarget, files};
use countersign_process::file_reload::{FileContents, LoadedFiles};
use redis::{ClientTlsConfig, TlsCertificates};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use std::path::Path;

/// What an error about a file names: the setting, and its parameter.
const CA_FILE: &str = "redis.url: sslrootcert";
const CERTIFICATE: &str = "redis.url: sslcert";
const PRIVATE_KEY: &str = "redis.url: sslkey";

/// Reads and checks the configured certificates. `None` if no certificates are configured: the Redis client then trusts the
/// authorities of the operating system.
pub(super) fn load_certificates(target: &RedisTarget) -> Result<Option<TlsCertificates>, AppError> {
    let root_cert = read_setting_file(CA_FILE, &target.ca_file)?;
    let certificate = read_setting_file(CERTIFICATE, &target.certificate)?;
    let private_key = read_setting_file(PRIVATE_KEY, &target.private_key)?;
    parse_certificates(root_cert, certificate, private_key)
}

/// The certificate files, with the contents in use.
pub(super) fn loaded_files(target: &RedisTarget, certificates: &TlsCertificates) -> LoadedFiles {
    let TlsCertificates { client_tls, root_cert } = certificates;
    let mut files = Vec::new();
    if let Some(root_cert) = root_cert {
        files.push((target.ca_file.as_path(), root_cert.as_slice()));
    }
    if let Some(ClientTlsConfig { client_cert, client_key }) = client_tls {
        files.push((target.certificate.as_path(), client_cert.as_slice()));
        files.push((target.private_key.as_path(), client_key.as_slice()));
    }
    LoadedFiles::new("redis.url", &files)
}

/// Checks new contents of the files in [`loaded_files`].
pub(super) fn parse_contents(target: &RedisTarget, contents: &FileContents) -> Result<TlsCertificates, AppError> {
    let mut contents = contents.iter().map(|content| content.to_vec());
    let mut next_if_set = |path: &Path| if path.as_os_str().is_empty() { None } else { contents.next() };
    let root_cert = next_if_set(&target.ca_file);
    let (certificate, private_key) = (next_if_set(&target.certificate), next_if_set(&target.private_key));
    let certificates = parse_certificates(root_cert, certificate, private_key)?;
    certificates.ok_or_else(|| AppError::setting(CA_FILE, "contains no PEM certificate"))
}

fn parse_certificates(
    root_cert: Option<Vec<u8>>,
    certificate: Option<Vec<u8>>,
    private_key: Option<Vec<u8>>,
) -> Result<Option<TlsCertificates>, AppError> {
    let authorities = root_cert.as_deref().map_or_else(|| Ok(RootCertStore::empty()), parse_authorities)?;
    let client_tls = match (certificate, private_key) {
        (Some(client_cert), Some(client_key)) => {
            check_client_certificate(authorities, &client_cert, &client_key)?;
            Some(ClientTlsConfig { client_cert, client_key })
        }
        _ => None,
    };
    let is_configured = client_tls.is_some() || root_cert.is_some();
    Ok(is_configured.then_some(TlsCertificates { client_tls, root_cert }))
}

fn read_setting_file(setting: &str, path: &Path) -> Result<Option<Vec<u8>>, AppError> {
    files::read_if_set(path).map_err(|error| AppError::setting_file(setting, path, error))
}

fn parse_authorities(pem: &[u8]) -> Result<RootCertStore, AppError> {
    let mut store = RootCertStore::empty();
    for authority in parse_chain(CA_FILE, pem)? {
        store.add(authority).map_err(|error| AppError::setting(CA_FILE, error))?;
    }
    Ok(store)
}

fn parse_chain(setting: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, AppError> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let chain = chain.ok().filter(|chain| !chain.is_empty());
    chain.ok_or_else(|| AppError::setting(setting, "contains no PEM certificate"))
}

/// Checks that the certificate and the key belong together.
fn check_client_certificate(
    authorities: RootCertStore,
    certificate: &[u8],
    private_key: &[u8],
) -> Result<(), AppError> {
    let chain = parse_chain(CERTIFICATE, certificate)?;
    let key = PrivateKeyDer::from_pem_slice(private_key)
        .map_err(|_| AppError::setting(PRIVATE_KEY, "contains no PEM private key"))?;
    // `ClientConfig::builder` needs the cryptography provider, which `config check` has not installed.
    install_crypto_provider();
    let checked = ClientConfig::builder().with_root_certificates(authorities).with_client_auth_cert(chain, key);
    checked.map(drop).map_err(|error| AppError::setting("redis.url: sslcert, sslkey", error))
}
