//! TLS and mutual TLS between Envoy and the sidecar: who gets an answer, before and after the files are replaced.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]

use countersign_tests::{
    Agent, ControlPlane, Envoy, Sidecar, TlsFiles, Upstream, envoy::replaced, process::free_port, sidecar::run_command,
    tools,
};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use std::{fs, path::Path, process::Command, sync::Arc};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

const HOST: &str = "localhost";

/// The files of the sidecar, with the settings that name them.
const FILES: [(&str, &str); 3] =
    [("tls.certificate", "server.pem"), ("tls.private_key", "server.key"), ("tls.client_ca", "authority.pem")];

/// The transport socket of a connection without TLS.
const PLAIN_TEXT: &str = "";

/// A sidecar that other hosts can reach, with copies of the files, which a test can replace.
struct Fixture {
    _control: ControlPlane,
    sidecar: Sidecar,
    port: u16,
    folder: TempDir,
    upstream: Upstream,
    token: String,
}

impl Fixture {
    /// Starts a sidecar whose settings name the first files of [`FILES`].
    async fn start(files: &TlsFiles, settings: usize) -> Self {
        let control = ControlPlane::start_process().await;
        let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
        install(files, folder.path());
        let file = |(key, name): (&str, &str)| format!("{key}={}", folder.path().join(name).display());
        let settings = FILES.into_iter().take(settings).map(file).chain([format!("listen.grpc=0.0.0.0:{port}")]);
        let settings: Vec<_> = settings.collect();
        let settings: Vec<_> = settings.iter().map(String::as_str).collect();
        let sidecar = Sidecar::start_with(&control, &[control.key()], &settings);
        sidecar.wait_until_ready().await;
        let (agent, _) = Agent::with_role(&control, "reader", &["read"]).await;
        let token = agent.token().await;
        Self { _control: control, sidecar, port, folder, upstream: Upstream::start().await, token }
    }

    /// Starts Envoy with a transport socket of its connection to the sidecar.
    async fn envoy(&self, transport_socket: &str) -> Envoy {
        Envoy::start_with_transport_socket(self.port, transport_socket, self.upstream.port).await
    }

    async fn assert_allowed(&self, envoy: &Envoy) {
        let response = envoy.listener.get_as(&self.token, "/").await;
        assert_eq!(response.status, 200, "{response:?} {} {}", envoy.log(), self.sidecar.log());
    }

    /// Asserts that Envoy gets no answer, and refuses the request by itself.
    async fn assert_refused(&self, transport_socket: &str) {
        let (envoy, before) = (self.envoy(transport_socket).await, self.upstream.received());
        let response = envoy.listener.get_as(&self.token, "/").await;
        assert_eq!((response.status, response.header("x-agent-reason")), (503, ""), "{transport_socket}: {response:?}");
        assert_eq!(self.upstream.received(), before, "the service received nothing");
    }

    async fn reloaded(&self, setting: &str) {
        let metric = format!(r#"countersign_authz_file_reloads_total{{result="ok",setting="{setting}"}}"#);
        self.sidecar.wait_for_metric(&metric).await;
    }
}

/// Copies the files of the sidecar to a folder.
fn install(files: &TlsFiles, folder: &Path) {
    for (_, name) in FILES {
        fs::copy(files.file(name), folder.join(name)).unwrap();
    }
}

/// The transport socket of the manual, for a client that trusts the authority of `server`, and has the client certificate of
/// `client`.
fn tls(server: &TlsFiles, client: Option<&TlsFiles>) -> String {
    let page = fs::read_to_string(tools::root().join("docs/run/sidecar.md")).unwrap();
    let (_, yaml) = page.split_once("```yaml\ntransport_socket:\n").unwrap();
    let (yaml, _) = yaml.split_once("```").unwrap();
    let (validation, client_certificate) = yaml.split_at(yaml.find("      tls_certificates:").unwrap());
    let path = |files: &TlsFiles, name: &str| files.file(name).display().to_string();
    let validation = replaced(validation, "/etc/envoy/tls/sidecars.pem", &path(server, "authority.pem"));
    let validation = replaced(&validation, "authz.example.com", HOST);
    let client_certificate = client.map_or_else(String::new, |files| {
        let with_chain = replaced(client_certificate, "/etc/envoy/tls/certificate.pem", &path(files, "client.pem"));
        replaced(&with_chain, "/etc/envoy/tls/private-key.pem", &path(files, "client.key"))
    });
    let yaml = format!("transport_socket:\n{validation}{client_certificate}");
    format!("      {}\n", yaml.trim_end().replace('\n', "\n      "))
}

#[tokio::test]
async fn only_clients_of_the_authority_get_answers_and_changed_files_are_loaded() {
    let (old, new) = (TlsFiles::create(HOST), TlsFiles::create(HOST));
    let fixture = Fixture::start(&old, 3).await;
    let envoy = fixture.envoy(&tls(&old, Some(&old))).await;
    fixture.assert_allowed(&envoy).await;

    fixture.assert_refused(&tls(&old, None)).await;
    fixture.sidecar.wait_for_log("a TLS handshake failed").await;
    let log = fixture.sidecar.log();
    let line = log.lines().find(|line| line.contains("a TLS handshake failed")).unwrap();
    assert!(line.contains(r#"port="check""#) && line.contains("certificate"), "{line}");
    fixture.assert_refused(&tls(&old, Some(&new))).await;
    fixture.assert_refused(&tls(&new, Some(&old))).await;
    fixture.assert_refused(PLAIN_TEXT).await;

    install(&new, fixture.folder.path());
    for setting in ["tls.certificate", "tls.client_ca"] {
        fixture.reloaded(setting).await;
    }
    fixture.assert_allowed(&envoy).await;
    fixture.assert_allowed(&fixture.envoy(&tls(&new, Some(&new))).await).await;
    fixture.assert_refused(&tls(&old, Some(&new))).await;
    fixture.assert_refused(&tls(&new, Some(&old))).await;

    fs::write(fixture.folder.path().join("authority.pem"), "no certificate").unwrap();
    fixture.sidecar.wait_for_log("contains no PEM certificate").await;
    fixture.assert_allowed(&fixture.envoy(&tls(&new, Some(&new))).await).await;
}

#[tokio::test]
async fn without_an_authority_of_clients_every_client_that_speaks_tls_gets_answers() {
    let files = TlsFiles::create(HOST);
    let fixture = Fixture::start(&files, 2).await;
    fixture.assert_allowed(&fixture.envoy(&tls(&files, None)).await).await;
    fixture.assert_refused(&tls(&TlsFiles::create(HOST), None)).await;
    fixture.assert_refused(PLAIN_TEXT).await;
    let expiry = fixture.sidecar.metric("countersign_authz_certificate_expiry_timestamp_seconds").await;
    assert!(expiry.is_some_and(|expiry| expiry > 0.0), "{expiry:?}");

    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(files.file("authority.pem")).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots).with_no_client_auth();
    for (offered, selected) in [(&[&b"h2"[..], b"http/1.1"][..], Some(&b"h2"[..])), (&[&b"http/1.1"[..]], None)] {
        let mut config = config.clone();
        config.alpn_protocols = offered.iter().map(|protocol| protocol.to_vec()).collect();
        let stream = TcpStream::connect(("127.0.0.1", fixture.port)).await.unwrap();
        let name = ServerName::try_from(HOST).unwrap();
        let connected = TlsConnector::from(Arc::new(config)).connect(name, stream).await.ok();
        let protocol = connected.and_then(|stream| stream.get_ref().1.alpn_protocol().map(<[u8]>::to_vec));
        assert_eq!(protocol.as_deref(), selected);
    }
}

#[tokio::test]
async fn command_sends_a_check_by_mutual_tls() {
    let (files, other) = (TlsFiles::create(HOST), TlsFiles::create(HOST));
    let fixture = Fixture::start(&files, 3).await;
    let file = |files: &TlsFiles, name: &str| files.file(name).display().to_string();
    let (ca, certificate, key) =
        (file(&files, "authority.pem"), file(&files, "client.pem"), file(&files, "client.key"));
    let other_ca = file(&other, "authority.pem");
    let address = format!("https://{HOST}:{}", fixture.port);
    let run = |address: &str, arguments: &[&str]| {
        let mut command = Command::new(tools::binary("countersign-ext-authz"));
        command.args(["check", "--host", "x", "--path", "/", "--address", address]).args(arguments);
        let (code, output, error) = run_command(command, &fixture.token);
        (code.unwrap(), output + &error)
    };
    let client = ["--certificate", &certificate, "--private-key", &key];
    let (code, output) = run(&address, &[&["--ca", &ca][..], &client].concat());
    assert!(code == 0 && output.starts_with("allowed\n"), "{output}");
    let (code, output) = run(&address, &["--ca", &ca]);
    assert!(code == 4 && output.contains("is the sidecar running"), "{output}");
    let (code, output) = run(&address, &[&["--ca", &other_ca][..], &client].concat());
    assert!(code == 4 && output.contains("certificate"), "{output}");
    let (code, output) = run("http://127.0.0.1:1", &["--ca", &ca]);
    assert!(code == 1 && output.contains("--ca and --certificate need an --address with https://"), "{output}");
}

#[test]
fn port_of_other_hosts_does_not_start_without_a_word_about_its_clear_text() {
    let folder = tempfile::tempdir().unwrap();
    let files = TlsFiles::create(HOST);
    let other = TlsFiles::create(HOST);
    let missing = folder.path().join("missing.pem");
    let no_certificate = folder.path().join("empty.pem");
    fs::write(&no_certificate, "").unwrap();
    let setting = |key: &str, path: &Path| format!("tls.{key}={}", path.display());
    let pair = |certificate: &Path, key: &Path| vec![setting("certificate", certificate), setting("private_key", key)];
    let valid = || pair(&files.file("server.pem"), &files.file("server.key"));
    let with_clients = |path: &Path| [valid(), vec![setting("client_ca", path)]].concat();
    for (settings, expected) in [
        (vec![], "tls.certificate: other hosts can reach listen.grpc (0.0.0.0:0), and checks contain tokens: set"),
        (vec!["tls.mode=off".to_owned()], "`off` must be `serve`, `mesh` or `insecure`"),
        (pair(&no_certificate, &files.file("server.key")), "tls.certificate: contains no PEM certificate"),
        (pair(&files.file("server.pem"), &other.file("server.key")), "tls.certificate, tls.private_key: "),
        (with_clients(&no_certificate), "empty.pem: contains no PEM certificate"),
        (pair(&missing, &files.file("server.key")), "tls.certificate: "),
        (with_clients(&missing), "tls.client_ca: "),
    ] {
        let run = |command: &[&str]| {
            let mut process = Command::new(tools::binary("countersign-ext-authz"));
            process.env("COUNTERSIGN_SYNC__KEYS", "svc_sk_a").args(command);
            let defaults = ["listen.grpc=0.0.0.0:0", "listen.admin=127.0.0.1:0", "sync.urls=http://127.0.0.1:1"];
            for setting in defaults.into_iter().chain(settings.iter().map(String::as_str)) {
                process.args(["--set", setting]);
            }
            let (code, _, error) = run_command(process, "");
            assert!(code.is_some_and(|code| code != 0) && error.contains(expected), "{settings:?}: {code:?} {error}");
            code
        };
        let unreadable = settings.iter().any(|setting| setting.contains("missing"));
        assert_eq!(run(&[]), Some(if unreadable { 1 } else { 2 }), "{settings:?}");
        assert_eq!(run(&["config", "check"]), Some(2), "{settings:?}");
    }
}

#[tokio::test]
async fn clear_text_is_served_and_logged_if_the_settings_say_so() {
    let control = ControlPlane::start_process().await;
    for (mode, is_logged) in [("mesh", false), ("insecure", true)] {
        let port = free_port();
        let settings = [format!("listen.grpc=0.0.0.0:{port}"), format!("tls.mode={mode}")];
        let sidecar = Sidecar::start_with(&control, &[control.key()], &settings.each_ref().map(String::as_str));
        sidecar.wait_until_ready().await;
        assert_eq!(sidecar.check(&[]).await.reason, "token_missing");
        assert_eq!(sidecar.log().contains("tls.mode = insecure: the tokens in checks"), is_logged, "{}", sidecar.log());
    }
}
