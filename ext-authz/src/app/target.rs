//! The endpoint of the control plane. Its certificate authorities follow the file `sync.ca`: the next connection trusts the
//! new ones, and a connected stream continues.

use super::AuthorizerError;
use crate::{config::SyncSettings, metrics::Metrics};
use arc_swap::ArcSwap;
use countersign_process::{
    Clock,
    file_reload::{FileContents, FileReloader, LoadedFiles},
};
use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
};
use std::{sync::Arc, time::Duration};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};

/// The timeout for a connection to the control plane.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The interval between HTTP/2 pings, and the timeout for their answers. The control plane answers them also while a stream waits
/// for the database, so they detect a lost connection early.
const HTTP2_PING_INTERVAL: Duration = Duration::from_secs(10);

/// Creates the endpoint. Also returns the file with the certificate authorities, if one is configured.
pub fn sync_endpoint(settings: &SyncSettings) -> Result<(Endpoint, Option<LoadedFiles>), AuthorizerError> {
    if !settings.url.is_tls() {
        return Ok((plain_endpoint(settings), None));
    }
    let Some(path) = &settings.ca else {
        let endpoint = plain_endpoint(settings).tls_config(ClientTlsConfig::new().with_native_roots());
        return Ok((endpoint.map_err(|error| AuthorizerError::setting("sync.ca", error))?, None));
    };
    let with_path = |error: String| format!("{}: {error}", path.display());
    let pem =
        std::fs::read(path).map_err(|error| AuthorizerError::unavailable("sync.ca", with_path(error.to_string())))?;
    let endpoint = endpoint_with_authorities(settings, &pem)
        .map_err(|error| AuthorizerError::setting("sync.ca", with_path(error)))?;
    Ok((endpoint, Some(LoadedFiles::new("sync.ca", &[(path, &pem)]))))
}

/// Replaces the endpoint when the file with the certificate authorities changes.
pub fn follow_ca_file(
    settings: &SyncSettings,
    endpoint: Endpoint,
    file: Option<LoadedFiles>,
    metrics: &Metrics,
    clock: &Arc<dyn Clock>,
) -> (Arc<ArcSwap<Endpoint>>, Option<FileReloader>) {
    let endpoint = Arc::new(ArcSwap::from_pointee(endpoint));
    let reloader = file.map(|file| {
        let (settings, endpoint) = (settings.clone(), Arc::clone(&endpoint));
        let load = move |contents: &FileContents| {
            let pem = contents.first().ok_or("no file")?;
            endpoint.store(Arc::new(endpoint_with_authorities(&settings, pem)?));
            Ok("certificate authorities for the next connection to the control plane".to_owned())
        };
        FileReloader::new(file, Box::new(load), metrics.file_reloads(), Arc::clone(clock))
    });
    (endpoint, reloader)
}

fn plain_endpoint(settings: &SyncSettings) -> Endpoint {
    Endpoint::from(settings.url.uri().clone())
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(HTTP2_PING_INTERVAL)
        .keep_alive_timeout(HTTP2_PING_INTERVAL)
}

fn endpoint_with_authorities(settings: &SyncSettings, pem: &[u8]) -> Result<Endpoint, String> {
    // tonic ignores what it cannot parse, and would then trust no authority.
    let certificates = CertificateDer::pem_slice_iter(pem).filter_map(Result::ok);
    if RootCertStore::empty().add_parsable_certificates(certificates).0 == 0 {
        return Err("contains no PEM certificate".to_owned());
    }
    let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem));
    plain_endpoint(settings).tls_config(tls).map_err(|error| error.to_string())
}
