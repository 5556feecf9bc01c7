//! The TLS certificate that --dev generates, and the authority that signs it.

use countersign_process::certificates::Certificate;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose, date_time_ymd};
use secrecy::{ExposeSecret, SecretString};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Subject alternative names of the development certificate.
const LOOPBACK_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

#[derive(Debug, thiserror::Error)]
pub enum DevelopmentCertificateError {
    #[error("{path}: {error}")]
    File { path: PathBuf, error: io::Error },
    #[error("generating the development certificate failed: {0}")]
    Generation(#[from] rcgen::Error),
}

/// Generates a certificate for loopback, signed by the development authority in `directory`. A missing authority is created.
/// Also returns the file of the authority's certificate, which clients must trust.
pub fn for_development(directory: &Path, year: i32) -> Result<(Certificate, PathBuf), DevelopmentCertificateError> {
    let (ca_file, ca_key_file) = (directory.join("ca.pem"), directory.join("ca.key"));
    if !ca_key_file.exists() || !ca_file.exists() {
        create_authority(&ca_file, &ca_key_file, year)?;
    }
    let ca_key = SecretString::from(fs::read_to_string(&ca_key_file).map_err(file_error(&ca_key_file))?);
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
    Ok((Certificate { chain, key: key.serialize_pem().into() }, ca_file))
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

fn create_authority(file: &Path, key_file: &Path, year: i32) -> Result<(), DevelopmentCertificateError> {
    let key = KeyPair::generate()?;
    let certificate = ca_certificate_params(year).self_signed(&key)?;
    crate::files::write_secret(key_file, key.serialize_pem().as_bytes()).map_err(file_error(key_file))?;
    crate::files::write_atomically(file, certificate.pem().as_bytes(), 0o644).map_err(file_error(file))
}

fn file_error(path: &Path) -> impl FnOnce(io::Error) -> DevelopmentCertificateError {
    let path = path.to_owned();
    move |error| DevelopmentCertificateError::File { path, error }
}
