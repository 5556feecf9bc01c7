//! The files that TLS to Redis is spoken with. They are read once, at the start: what is wrong with them is said there,
//! by the name of the setting, since later it would be only one more reason why Redis is not there.

use super::super::{AppError, install_crypto};
use crate::{config::RedisSettings, files};
use redis::{ClientTlsConfig, TlsCertificates};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use std::path::Path;

/// What the settings name; `None`: nothing, so that the authorities of the system vouch for Redis.
pub(super) fn certificates(settings: &RedisSettings) -> Result<Option<TlsCertificates>, AppError> {
    let root_cert = read("redis.ca_file", &settings.ca_file)?;
    let certificate = read("redis.certificate", &settings.certificate)?;
    let private_key = read("redis.private_key", &settings.private_key)?;
    let authorities = root_cert.as_deref().map_or_else(|| Ok(RootCertStore::empty()), authorities)?;
    let client_tls = match (certificate, private_key) {
        (Some(client_cert), Some(client_key)) => {
            fit_together(authorities, &client_cert, &client_key)?;
            Some(ClientTlsConfig { client_cert, client_key })
        }
        _ => None,
    };
    let is_any = client_tls.is_some() || root_cert.is_some();
    Ok(is_any.then_some(TlsCertificates { client_tls, root_cert }))
}

fn read(setting: &str, path: &Path) -> Result<Option<Vec<u8>>, AppError> {
    files::read_named(path).map_err(|error| wrong(setting, format!("{}: {error}", path.display())))
}

fn authorities(pem: &[u8]) -> Result<RootCertStore, AppError> {
    let mut store = RootCertStore::empty();
    for authority in chain("redis.ca_file", pem)? {
        store.add(authority).map_err(|error| wrong("redis.ca_file", error.to_string()))?;
    }
    Ok(store)
}

fn chain(setting: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, AppError> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    chain.ok().filter(|chain| !chain.is_empty()).ok_or_else(|| wrong(setting, "holds no certificate in PEM".to_owned()))
}

fn fit_together(authorities: RootCertStore, certificate: &[u8], private_key: &[u8]) -> Result<(), AppError> {
    let chain = chain("redis.certificate", certificate)?;
    let key = PrivateKeyDer::from_pem_slice(private_key)
        .map_err(|_| wrong("redis.private_key", "holds no private key in PEM".to_owned()))?;
    // Before a check of the settings nobody has.
    install_crypto();
    let tried = ClientConfig::builder().with_root_certificates(authorities).with_client_auth_cert(chain, key);
    tried.map(drop).map_err(|error| wrong("redis.certificate, redis.private_key", error.to_string()))
}

fn wrong(setting: &str, error: String) -> AppError {
    AppError::Setting { setting: setting.to_owned(), error }
}
