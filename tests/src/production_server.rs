//! Starts the control plane binary without `--dev` and with its own TLS certificate. The operator key or an OIDC issuer
//! signs the token of the human user.

use crate::{
    control_plane::text,
    http::HttpClient,
    process::{Process, free_port},
    tools,
};
use serde_json::json;
use std::{path::PathBuf, process::Command};
use tempfile::TempDir;

/// A control plane process.
pub struct ProductionServer {
    process: Process,
    arguments: Vec<String>,
    /// HTTP client of the API.
    pub api: HttpClient,
    /// Human token of an administrator.
    pub human: String,
    /// Id of a service that the administrator created.
    pub service: String,
    /// API key of the service, with scope `full`.
    pub key: String,
    /// The sync port.
    pub sync_port: u16,
    /// HTTP client of the admin port.
    pub admin: HttpClient,
    folder: TempDir,
}

impl ProductionServer {
    /// Starts with settings such as `limits.auth_per_minute=1`.
    pub async fn start(settings: &[&str]) -> Self {
        Self::start_as(None, settings).await
    }

    /// Starts with a human token of an issuer in the settings. With `None`, the operator key signs the token.
    pub async fn start_as(human: Option<String>, settings: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be created");
        let pair = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("the certificate is valid");
        let (certificate, key) = (folder.path().join("certificate.pem"), folder.path().join("key.pem"));
        std::fs::write(&certificate, pair.cert.pem()).expect("the file can be written");
        std::fs::write(&key, pair.signing_key.serialize_pem()).expect("the file can be written");
        let (port, sync_port, admin) = (free_port(), free_port(), free_port());
        let url = format!("https://localhost:{port}");
        let base = [
            format!("data_dir={}", folder.path().join("data").display()),
            format!("public_url={url}"),
            format!("tls.certificate={}", certificate.display()),
            format!("tls.private_key={}", key.display()),
            format!("listen.api=127.0.0.1:{port}"),
            format!("listen.sync=127.0.0.1:{sync_port}"),
            format!("listen.admin=127.0.0.1:{admin}"),
        ];
        let settings = base.iter().map(String::as_str).chain(settings.iter().copied());
        let arguments: Vec<_> = settings.flat_map(|setting| ["--set".to_owned(), setting.to_owned()]).collect();
        let process = launch(&arguments, &folder, admin).await;
        let admin = HttpClient::plain(format!("http://127.0.0.1:{admin}"));
        let human = human.unwrap_or_else(|| mint_admin_token(&arguments));
        let api = HttpClient::trusting(url, pair.cert.pem().as_bytes());
        let created = api.send_as(&human, "POST", "/services", json!({ "name": "first" })).await.expect(201);
        let service = text(&created["serviceId"]);
        let body = json!({ "name": "test", "scope": "full" });
        let created = api.send_as(&human, "POST", &format!("/services/{service}/keys"), body).await.expect(201);
        Self { process, arguments, api, human, key: text(&created["apiKey"]), service, sync_port, admin, folder }
    }

    /// Terminates the process and starts it again with further settings.
    pub async fn restart_with(&mut self, settings: &[&str]) {
        self.arguments.extend(settings.iter().flat_map(|setting| ["--set".to_owned(), (*setting).to_owned()]));
        self.restart().await;
    }

    /// The setting with the data directory.
    pub fn data_setting(&self) -> String {
        format!("data_dir={}", self.folder.path().join("data").display())
    }

    /// Terminates the process and starts it again.
    pub async fn restart(&mut self) {
        assert!(self.process.terminate().await.success(), "{}", self.log());
        let admin = self.admin.url.rsplit(':').next().and_then(|port| port.parse().ok());
        self.process = launch(&self.arguments, &self.folder, admin.expect("the URL has a port")).await;
    }

    /// The file with the TLS certificate.
    pub fn certificate_file(&self) -> PathBuf {
        self.folder.path().join("certificate.pem")
    }

    /// The file with the private key of the TLS certificate.
    pub fn private_key_file(&self) -> PathBuf {
        self.folder.path().join("key.pem")
    }

    /// Value of a counter or gauge, by the prefix of its line in `/metrics`.
    pub async fn metric(&self, line: &str) -> Option<f64> {
        self.admin.metric(line).await
    }

    /// The log so far.
    pub fn log(&self) -> String {
        self.process.log()
    }
}

/// Starts the process and waits until it is ready.
async fn launch(arguments: &[String], folder: &TempDir, admin: u16) -> Process {
    let mut command = Command::new(tools::binary("countersign-control-plane"));
    command.args(arguments);
    let process = Process::start(command, &folder.path().join("log"));
    let admin = HttpClient::plain(format!("http://127.0.0.1:{admin}"));
    admin.wait_until_ok("/readyz", "the control plane is ready", || process.log()).await;
    process
}

/// Mints an administrator's token with the operator key.
fn mint_admin_token(settings: &[String]) -> String {
    let mut command = Command::new(tools::binary("countersign-control-plane"));
    let output = command.args(["human-token", "mint", "--subject", "operator", "--admin"]).args(settings).output();
    let output = output.expect("the binary runs");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("the text is UTF-8").trim().to_owned()
}
