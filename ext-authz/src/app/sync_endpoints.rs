//! The endpoints of the control plane. When the file `sync.ca` changes, the next connection trusts the new certificate authorities,
//! and open streams continue.

use super::{AuthorizerError, authorities};
use crate::{
    config::{SyncSettings, SyncUrl},
    metrics::Metrics,
};
use arc_swap::ArcSwap;
use countersign_process::{
    Clock,
    file_reload::{FileContents, FileReloader, LoadedFiles},
};
use std::{sync::Arc, time::Duration};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The interval between HTTP/2 pings, and the timeout for their answers. They detect a lost connection early, because the control plane
/// answers them even while a stream waits for the database.
const HTTP2_PING_INTERVAL: Duration = Duration::from_secs(10);

/// The interval between TCP keepalive packets. They keep firewalls from dropping an idle connection, and find a dead peer.
const TCP_KEEPALIVE: Duration = Duration::from_secs(15);

/// Creates an endpoint for each address. Also returns the file `sync.ca`, if the settings name one and an address uses TLS.
pub fn create(settings: &SyncSettings) -> Result<(Vec<Endpoint>, Option<LoadedFiles>), AuthorizerError> {
    let Some(path) = settings.ca.as_ref().filter(|_| settings.urls.iter().any(SyncUrl::is_tls)) else {
        // If the system has no usable certificate authorities, the remedy is to set `sync.ca`.
        let endpoints = endpoints(settings, &ClientTlsConfig::new().with_native_roots());
        return Ok((endpoints.map_err(|error| AuthorizerError::setting("sync.ca", error))?, None));
    };
    let with_path = |error: String| format!("{}: {error}", path.display());
    let pem =
        std::fs::read(path).map_err(|error| AuthorizerError::unavailable("sync.ca", with_path(error.to_string())))?;
    let endpoints = endpoints_with_authorities(settings, &pem)
        .map_err(|error| AuthorizerError::setting("sync.ca", with_path(error)))?;
    Ok((endpoints, Some(LoadedFiles::new("sync.ca", &[(path, &pem)]))))
}

/// Shares the endpoints with a reloader, which replaces them when the file with the certificate authorities changes.
pub fn follow_ca_file(
    settings: &SyncSettings,
    endpoints: Vec<Endpoint>,
    file: Option<LoadedFiles>,
    metrics: &Metrics,
    clock: &Arc<dyn Clock>,
) -> (Arc<ArcSwap<Vec<Endpoint>>>, Option<FileReloader>) {
    let endpoints = Arc::new(ArcSwap::from_pointee(endpoints));
    let reloader = file.map(|file| {
        let (settings, endpoints) = (settings.clone(), Arc::clone(&endpoints));
        let load = move |contents: &FileContents| {
            let pem = contents.first().ok_or("no file")?;
            endpoints.store(Arc::new(endpoints_with_authorities(&settings, pem)?));
            Ok("certificate authorities for the next connection to the control plane".to_owned())
        };
        FileReloader::new(file, Box::new(load), &metrics.file_reloads, Arc::clone(clock))
    });
    (endpoints, reloader)
}

fn endpoints(settings: &SyncSettings, tls: &ClientTlsConfig) -> Result<Vec<Endpoint>, String> {
    let to_endpoint = |url: &SyncUrl| {
        let endpoint = Endpoint::from(url.uri().clone())
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_keepalive(Some(TCP_KEEPALIVE))
            .http2_keep_alive_interval(HTTP2_PING_INTERVAL)
            .keep_alive_timeout(HTTP2_PING_INTERVAL);
        if url.is_tls() { endpoint.tls_config(tls.clone()).map_err(|error| error.to_string()) } else { Ok(endpoint) }
    };
    settings.urls.iter().map(to_endpoint).collect()
}

fn endpoints_with_authorities(settings: &SyncSettings, pem: &[u8]) -> Result<Vec<Endpoint>, String> {
    // tonic ignores what it cannot parse. Without this check, it would accept a file without certificates, and trust no server.
    authorities::parse(pem)?;
    endpoints(settings, &ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem)))
}
