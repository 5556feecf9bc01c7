//! TLS of the port to which Envoy connects. When its files change, the next connection uses the new ones, and open connections
//! continue.
//!
//! Invariant: with `tls.client_ca`, every connection has proved that it has a certificate of these authorities. TLS sessions are not
//! resumed then, because nobody would verify the certificate again.

use super::{AuthorizerError, authorities};
use crate::{
    config::{TlsFiles, TlsSettings},
    metrics::Metrics,
};
use countersign_process::{
    Clock,
    certificates::{Certificate, CertificateError, CertificateProblem, ServedCertificate},
    file_reload::{FileContents, FileReloader, LoadContents, LoadedFiles},
    server::TlsOnly,
};
use rustls::{
    ServerConfig,
    server::{NoServerSessionStorage, WebPkiClientVerifier},
};
use std::{fs, sync::Arc};

/// The protocol that the port offers (ALPN). gRPC needs HTTP/2.
const PROTOCOL: &[u8] = b"h2";

const CLIENT_CA: &str = "tls.client_ca";

/// Reads the files, and returns the handshake of the port with the reloaders of the files. `None` if the port serves no TLS.
pub fn create(
    settings: &TlsSettings,
    metrics: &Metrics,
    clock: &Arc<dyn Clock>,
) -> Result<Option<(TlsOnly, Vec<FileReloader>)>, AuthorizerError> {
    let Some(TlsFiles { certificate: chain, private_key, client_ca }) = settings.files() else { return Ok(None) };
    let certificate = Certificate::read(chain, private_key).map_err(unusable)?;
    let served = ServedCertificate::new(&certificate, metrics.certificate_expiry()?, clock.now()).map_err(unusable)?;
    let reloader = |files, load| FileReloader::new(files, load, &metrics.file_reloads, Arc::clone(clock));
    let of_certificate = reloader(certificate.files(chain, private_key), served.load_changed_files(Arc::clone(clock)));
    let Some(path) = client_ca else {
        return Ok(Some((TlsOnly::new(served.server_config(&[PROTOCOL])), vec![of_certificate])));
    };
    let with_path = |error: String| format!("{}: {error}", path.display());
    let pem = fs::read(path).map_err(|error| AuthorizerError::unavailable(CLIENT_CA, with_path(error.to_string())))?;
    let config = mutual_config(&served, &pem).map_err(|error| AuthorizerError::setting(CLIENT_CA, with_path(error)))?;
    let handshake = TlsOnly::new(config);
    let replaced = handshake.clone();
    let load: LoadContents = Box::new(move |contents: &FileContents| {
        replaced.replace(mutual_config(&served, contents.first().ok_or("no file")?)?);
        Ok("certificate authorities of the clients of the next connections".to_owned())
    });
    let of_authorities = reloader(LoadedFiles::new(CLIENT_CA, &[(path, &pem)]), load);
    Ok(Some((handshake, vec![of_certificate, of_authorities])))
}

/// The configuration of a port whose clients need a certificate of these authorities.
fn mutual_config(served: &Arc<ServedCertificate>, authorities_pem: &[u8]) -> Result<Arc<ServerConfig>, String> {
    let authorities = Arc::new(authorities::parse(authorities_pem)?);
    let verifier = WebPkiClientVerifier::builder(authorities).build().map_err(|error| error.to_string())?;
    let mut config =
        ServerConfig::builder()
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::<ServedCertificate>::clone(served));
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

fn unusable(CertificateError { setting, problem }: CertificateError) -> AuthorizerError {
    let error = problem.to_string();
    match problem {
        CertificateProblem::File { .. } => AuthorizerError::unavailable(setting, error),
        CertificateProblem::Malformed
        | CertificateProblem::Unusable(_)
        | CertificateProblem::Expired(_)
        | CertificateProblem::NotYetValid(_) => AuthorizerError::setting(setting, error),
    }
}
