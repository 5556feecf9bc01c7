//! Builds the Redis client and the rate limiter from the settings.
//!
//! We check the certificate files at start-up and when they change, so that an error names the setting. If we only noticed invalid
//! certificates while connecting, Redis would seem to be unavailable.

use super::AppError;
use crate::{
    config::{Config, RedisKind, RedisTarget},
    ephemeral::{
        MemoryRateLimiter, RateLimiter, RedisClient, RedisEndpoint, RedisRateLimiter, RedisServers, SentinelTarget,
    },
    files,
    metrics::Metrics,
    store::{Store, master_keys},
};
use countersign_process::{
    Clock,
    file_reload::{FileContents, LoadedFiles},
};
use redis::{ClientTlsConfig, TlsCertificates};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use std::{path::Path, sync::Arc};

/// Length of the deployment's name in Redis keys. The name is the beginning of the fingerprint of the first master key, so a
/// rotation of the master key does not change the name.
const DEPLOYMENT_NAME_LENGTH: usize = 16;

/// Creates the client of the configured Redis, and connects it if Redis is available. Also returns the files of the
/// certificates, if any are configured. `None` if no Redis is configured.
pub(super) async fn connect(
    config: &Config,
    store: &Store,
    metrics: &Metrics,
) -> Result<Option<(Arc<RedisClient>, Option<LoadedFiles>)>, AppError> {
    let Some((endpoint, files)) = endpoint(config)? else { return Ok(None) };
    let mut deployment = master_keys::find_first(store.read().await?.conn()).await?;
    deployment.truncate(DEPLOYMENT_NAME_LENGTH);
    let client = RedisClient::new(endpoint, &deployment, metrics.redis.clone());
    client.connect_at_startup().await;
    Ok(Some((Arc::new(client), files)))
}

/// Uses the new contents of the certificate files for the next connections. Returns a description for the log.
pub(super) fn replace_certificates(
    client: &RedisClient,
    target: &RedisTarget,
    contents: &FileContents,
) -> Result<String, AppError> {
    let certificates = parse_contents(target, contents)?;
    client.replace_certificates(certificates);
    Ok("certificates for the next connections to Redis".to_owned())
}

/// The configured Redis, and the files of its certificates. `None` if no Redis is configured.
pub(super) fn endpoint(config: &Config) -> Result<Option<(RedisEndpoint, Option<LoadedFiles>)>, AppError> {
    let Some(target) = config.redis.target() else { return Ok(None) };
    let certificates = load_certificates(&target)?;
    let files = certificates.as_ref().map(|certificates| loaded_files(&target, certificates));
    let endpoint = RedisEndpoint::new(servers(target), certificates);
    endpoint.validate().map_err(|error| AppError::setting("redis.url", error))?;
    Ok(Some((endpoint, files)))
}

/// The rate limiter: in Redis if a client is passed, else in memory.
pub(super) fn rate_limiter(client: Option<Arc<RedisClient>>, clock: Arc<dyn Clock>) -> Arc<dyn RateLimiter> {
    let in_memory = MemoryRateLimiter::new(clock);
    match client {
        Some(client) => Arc::new(RedisRateLimiter::new(client, in_memory)),
        None => Arc::new(in_memory),
    }
}

fn servers(target: RedisTarget) -> RedisServers {
    let RedisTarget { kind, mut urls, master, sentinel_user: user, sentinel_password: password, .. } = target;
    match kind {
        RedisKind::Single => RedisServers::Single(urls.pop().unwrap_or_default()),
        RedisKind::Cluster => RedisServers::Cluster(urls),
        RedisKind::Sentinel => RedisServers::Sentinel(urls, SentinelTarget { master, user, password }),
    }
}

/// How errors name a file: by its setting and parameter.
const CA_FILE: &str = "redis.url: sslrootcert";
const CERTIFICATE: &str = "redis.url: sslcert";
const PRIVATE_KEY: &str = "redis.url: sslkey";

/// Reads and checks the configured certificates. `None` if no certificates are configured: the Redis client then trusts the
/// authorities of the operating system.
fn load_certificates(target: &RedisTarget) -> Result<Option<TlsCertificates>, AppError> {
    let root_cert = read_setting_file(CA_FILE, &target.ca_file)?;
    let certificate = read_setting_file(CERTIFICATE, &target.certificate)?;
    let private_key = read_setting_file(PRIVATE_KEY, &target.private_key)?;
    parse_certificates(root_cert, certificate, private_key)
}

/// The certificate files, with the contents in use, so that changes are noticed.
fn loaded_files(target: &RedisTarget, certificates: &TlsCertificates) -> LoadedFiles {
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

/// Checks new contents of the certificate files, in the order of [`loaded_files`].
fn parse_contents(target: &RedisTarget, contents: &FileContents) -> Result<TlsCertificates, AppError> {
    let mut contents = contents.iter().map(|content| content.to_vec());
    let mut next_if_set = |path: &Path| if path.as_os_str().is_empty() { None } else { contents.next() };
    let root_cert = next_if_set(&target.ca_file);
    let (certificate, private_key) = (next_if_set(&target.certificate), next_if_set(&target.private_key));
    let certificates = parse_certificates(root_cert, certificate, private_key)?;
    // `None` cannot occur: without certificates, there are no files to load.
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
    let checked = ClientConfig::builder().with_root_certificates(authorities).with_client_auth_cert(chain, key);
    checked.map(drop).map_err(|error| AppError::setting("redis.url: sslcert, sslkey", error))
}
