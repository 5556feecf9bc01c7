//! The TLS certificate is replaced while clients connect.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]

use countersign_tests::{ProductionServer, eventually};
use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use std::{
    fs, io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

const FAILED: &str = r#"countersign_file_reloads_total{result="failed",setting="tls.certificate"}"#;

const SUCCEEDED: &str = r#"countersign_file_reloads_total{result="ok",setting="tls.certificate"}"#;

const EXPIRY: &str = "countersign_certificate_expiry_timestamp_seconds";

/// A certificate for `localhost` and its private key, as PEM.
struct Pair {
    certificate: String,
    key: String,
}

impl Pair {
    fn generate() -> Self {
        let pair = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        Self { certificate: pair.cert.pem(), key: pair.signing_key.serialize_pem() }
    }

    fn der(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(self.certificate.as_bytes()).unwrap()
    }
}

/// The TLS settings of a client that trusts these certificates.
fn trusting(certificates: &[CertificateDer<'static>]) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        roots.add(certificate.clone()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    Arc::new(config.with_root_certificates(roots).with_no_client_auth())
}

/// Connects, and returns the certificate of the server.
async fn connect(port: u16, config: &Arc<ClientConfig>) -> io::Result<CertificateDer<'static>> {
    let stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let name = ServerName::try_from("localhost").unwrap();
    let stream = TlsConnector::from(Arc::clone(config)).connect(name, stream).await?;
    Ok(stream.get_ref().1.peer_certificates().unwrap()[0].clone().into_owned())
}

async fn wait_for_metric(server: &ProductionServer, line: &str, minimum: f64) -> f64 {
    let reached = async || server.metric(line).await.filter(|value| *value >= minimum);
    eventually(line, reached, || server.log()).await
}

/// Waits for a line of the log. The server writes the line after it has changed the metric.
async fn wait_for_log(server: &ProductionServer, text: &str) {
    eventually(text, async || server.log().contains(text).then_some(()), || server.log()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn certificate_is_replaced_while_clients_connect() {
    let server = ProductionServer::start(&[]).await;
    let api_port = server.api.url.rsplit(':').next().unwrap().parse().unwrap();
    let ports = [api_port, server.sync_port];
    let old = CertificateDer::from_pem_slice(&fs::read(server.certificate_file()).unwrap()).unwrap();
    let new = Pair::generate();
    let certificates = [old.clone(), new.der()];
    let (stop, handshakes) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    // At each port, one client resumes TLS sessions, and the other makes a full handshake each time.
    let clients = [(ports[0], true), (ports[0], false), (ports[1], true), (ports[1], false)].map(|(port, resumes)| {
        let (stop, handshakes, certificates) = (Arc::clone(&stop), Arc::clone(&handshakes), certificates.clone());
        let shared = trusting(&certificates);
        tokio::spawn(async move {
            while !stop.load(SeqCst) {
                let config = if resumes { Arc::clone(&shared) } else { trusting(&certificates) };
                connect(port, &config).await?;
                handshakes.fetch_add(1, SeqCst);
            }
            io::Result::Ok(())
        })
    });
    let presented = async || {
        let api = connect(ports[0], &trusting(&certificates)).await.unwrap();
        let sync = connect(ports[1], &trusting(&certificates)).await.unwrap();
        assert_eq!(api, sync, "both ports present the same certificate");
        api
    };
    assert_eq!(presented().await, old);
    let expiry = wait_for_metric(&server, EXPIRY, 1.0).await;

    fs::write(server.certificate_file(), &new.certificate).unwrap();
    wait_for_metric(&server, FAILED, 2.0).await;
    assert_eq!(presented().await, old, "a certificate without its key is not served");
    let failures = || server.log().matches("changed files cannot be loaded").count();
    wait_for_log(&server, "KeyMismatch").await;
    assert_eq!(failures(), 1, "the same failure is logged once: {}", server.log());
    assert_eq!(server.metric(EXPIRY).await, Some(expiry));

    fs::write(server.private_key_file(), &new.key).unwrap();
    wait_for_metric(&server, SUCCEEDED, 1.0).await;
    assert_eq!(presented().await, new.der());
    wait_for_log(&server, "a certificate that expires at").await;

    // A chain may end with certificates that have expired: no client needs them.
    let mut expired = CertificateParams::new(vec!["authority".to_owned()]).unwrap();
    (expired.not_before, expired.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1));
    let expired = expired.self_signed(&KeyPair::generate().unwrap()).unwrap().pem();
    fs::write(server.certificate_file(), format!("{}{expired}", new.certificate)).unwrap();
    wait_for_metric(&server, SUCCEEDED, 2.0).await;
    assert_eq!(presented().await, new.der());
    assert!(wait_for_metric(&server, EXPIRY, 1.0).await > 1_610_000_000.0, "the expiry is that of the own certificate");

    let failed = server.metric(FAILED).await.unwrap();
    fs::write(server.certificate_file(), &new.certificate[..100]).unwrap();
    wait_for_metric(&server, FAILED, failed + 1.0).await;
    assert_eq!(presented().await, new.der());
    eventually("the failure is logged", async || (failures() == 2).then_some(()), || server.log()).await;
    assert_eq!(server.metric(SUCCEEDED).await, Some(2.0));

    let before = handshakes.load(SeqCst);
    eventually("clients connect", async || (handshakes.load(SeqCst) > before).then_some(()), || server.log()).await;
    stop.store(true, SeqCst);
    for client in clients {
        client.await.unwrap().unwrap();
    }
    println!("{} handshakes, none failed", handshakes.load(SeqCst));
}

#[tokio::test]
async fn start_warns_about_an_expired_certificate_and_a_valid_one_replaces_it() {
    let mut server = ProductionServer::start(&[]).await;
    let valid = fs::read(server.certificate_file()).unwrap();
    let key = KeyPair::from_pem(&fs::read_to_string(server.private_key_file()).unwrap()).unwrap();
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1));
    fs::write(server.certificate_file(), params.self_signed(&key).unwrap().pem()).unwrap();
    server.restart().await;
    wait_for_log(&server, "expired at 2021-01-01T00:00:00Z").await;
    let warning = server.log().lines().find(|line| line.contains("expired at 2021-01-01T00:00:00Z")).map(str::to_owned);
    assert!(warning.is_some_and(|line| line.contains("WARN")), "{}", server.log());
    fs::write(server.certificate_file(), valid).unwrap();
    wait_for_metric(&server, SUCCEEDED, 1.0).await;
    server.api.get("/health").await.expect(200);
}
