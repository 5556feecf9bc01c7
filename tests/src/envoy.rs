//! Starts Envoy with a test configuration.

use crate::{
    http::{HttpClient, HttpResponse},
    process::{Process, eventually, free_port},
    tools,
};
use std::{path::Path, process::Command};
use tempfile::TempDir;

/// An Envoy process.
pub struct Envoy {
    // Declared before the folder: if the test panics, dropping the process prints the log in the folder.
    process: Process,
    _folder: TempDir,
    /// HTTP client of the listener.
    pub listener: HttpClient,
    /// HTTP client of the admin interface.
    pub admin: HttpClient,
}

impl Envoy {
    /// Starts Envoy with the example configuration, the sidecar at `socket` and the upstream at port `upstream`.
    pub async fn start_example(socket: &Path, upstream: u16) -> Self {
        Self::start_edited_example(socket, upstream, |text| text).await
    }

    /// Starts Envoy with the example configuration, but waits longer for a decision, so that a pause of a busy machine refuses no
    /// request.
    pub async fn start_with_long_check_timeout(socket: &Path, upstream: u16) -> Self {
        Self::start_edited_example(socket, upstream, |text| with_long_check_timeout(&text)).await
    }

    /// Starts Envoy with an edited copy of the example configuration.
    pub async fn start_edited_example(socket: &Path, upstream: u16, edit: impl FnOnce(String) -> String) -> Self {
        let example = tools::root().join("examples/envoy/envoy.yaml");
        let text = std::fs::read_to_string(example).expect("the example configuration is readable");
        Self::start(&edit(text), socket, upstream).await
    }

    /// Starts Envoy with the example configuration, but with the sidecar at this port of loopback, and with this transport socket of
    /// the connection. Waits longer for a decision, as [`Self::start_with_long_check_timeout`] does.
    pub async fn start_with_transport_socket(port: u16, transport_socket: &str, upstream: u16) -> Self {
        let socket_address = format!("socket_address: {{ address: 127.0.0.1, port_value: {port} }}");
        let example = std::fs::read_to_string(tools::root().join("examples/envoy/envoy.yaml"));
        let example = with_long_check_timeout(&example.expect("the example configuration is readable"));
        let at_port = replaced(&example, "pipe: { path: /run/countersign/authz.sock }", &socket_address);
        let cluster = "    - name: countersign\n      type: STATIC\n";
        Self::start_with_sidecar(&replaced(&at_port, cluster, &format!("{cluster}{transport_socket}")), upstream).await
    }

    /// Starts Envoy with a configuration text. It must have the addresses of `examples/envoy/envoy.yaml`, which are replaced.
    pub async fn start(text: &str, socket: &Path, upstream: u16) -> Self {
        let path = format!("path: {}", socket.display());
        Self::start_with_sidecar(&replaced(text, "path: /run/countersign/authz.sock", &path), upstream).await
    }

    /// Starts Envoy with a configuration text that has the address of the sidecar already.
    async fn start_with_sidecar(text: &str, upstream: u16) -> Self {
        let folder = config_folder();
        let (admin, listen) = (free_port(), free_port());
        let config = [
            ("port_value: 9901", format!("port_value: {admin}")),
            ("port_value: 10000", format!("port_value: {listen}")),
            ("port_value: 8080", format!("port_value: {upstream}")),
        ]
        .iter()
        .fold(text.to_owned(), |text, (from, to)| replaced(&text, from, to));
        let file = folder.path().join("envoy.yaml");
        std::fs::write(&file, config).expect("the configuration can be written");
        let process = launch(&file);
        let client = |port| HttpClient::plain(format!("http://127.0.0.1:{port}"));
        let mut envoy = Self { process, _folder: folder, listener: client(listen), admin: client(admin) };
        envoy.wait_until_ready().await;
        envoy
    }

    /// The log so far, including the access log.
    pub fn log(&self) -> String {
        self.process.log()
    }

    async fn wait_until_ready(&mut self) {
        let (process, admin) = (&mut self.process, &self.admin);
        let ready = async || {
            process.assert_running();
            HttpResponse::try_send(admin.request("GET", "/ready")).await.filter(|response| response.status == 200)
        };
        eventually("Envoy is ready", ready, String::new).await;
    }
}

/// A temporary folder for configurations. Tests may keep their other files below `/dev`, where Envoy 1.38 and earlier read none.
pub fn config_folder() -> TempDir {
    tempfile::tempdir_in("/tmp").expect("a temporary folder can be created")
}

/// Starts Envoy with one worker thread and this configuration file, and a log file beside it.
pub fn launch(config: &Path) -> Process {
    let mut command = Command::new(tools::envoy());
    command.arg("-c").arg(config).args(["--concurrency", "1", "--disable-hot-restart", "--log-level", "warning"]);
    command.args(["--file-flush-interval-msec", "50"]);
    Process::start(command, &config.with_extension("log"))
}

/// A configuration of Envoy with a longer time for a decision of the sidecar.
pub fn with_long_check_timeout(config: &str) -> String {
    replaced(config, "timeout: 0.25s", "timeout: 5s")
}

/// Replaces `from` in a configuration. Panics if the configuration does not contain `from`.
#[track_caller]
pub fn replaced(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "the configuration does not contain `{from}`");
    text.replace(from, to)
}
