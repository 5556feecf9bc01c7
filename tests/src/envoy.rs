//! The real Envoy, with a configuration of the test's.

use crate::{
    http::{HttpClient, HttpResponse},
    process::{Process, eventually, free_port},
    tools,
};
use std::{path::Path, process::Command};
use tempfile::TempDir;

/// A running Envoy.
pub struct Envoy {
    // Before the folder: a log that is shown at the end is read before it is gone.
    process: Process,
    _folder: TempDir,
    /// Its listener.
    pub site: HttpClient,
    /// Its admin interface.
    pub admin: HttpClient,
}

impl Envoy {
    /// Starts the shipped example in front of an upstream, guarded by whoever listens on the socket.
    pub async fn shipped(socket: &Path, upstream: u16) -> Self {
        Self::edited(socket, upstream, |text| text).await
    }

    /// The same after an edit of the configuration's text.
    pub async fn edited(socket: &Path, upstream: u16, edit: impl FnOnce(String) -> String) -> Self {
        let example = tools::root().join("examples/envoy/envoy.yaml");
        let text = std::fs::read_to_string(example).expect("the example is there");
        Self::start(&edit(text), socket, upstream).await
    }

    /// Starts a configuration in which `# demo:` marks the values to fill in.
    pub async fn start(text: &str, socket: &Path, upstream: u16) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (admin, listen) = (free_port(), free_port());
        let filled = [
            ("admin_port", admin.to_string()),
            ("listen_port", listen.to_string()),
            ("authz_socket", socket.display().to_string()),
            ("service_port", upstream.to_string()),
        ]
        .iter()
        .fold(text.to_owned(), |text, (mark, value)| fill(&text, mark, value));
        let file = folder.path().join("envoy.yaml");
        std::fs::write(&file, filled).expect("the configuration can be written");
        let mut command = Command::new(tools::envoy());
        command.arg("-c").arg(file).args(["--concurrency", "1", "--disable-hot-restart", "--log-level", "warning"]);
        command.args(["--file-flush-interval-msec", "50"]);
        let process = Process::start(command, &folder.path().join("log"));
        let site = |port| HttpClient::plain(format!("http://127.0.0.1:{port}"));
        let mut envoy = Self { process, _folder: folder, site: site(listen), admin: site(admin) };
        envoy.await_ready().await;
        envoy
    }

    /// What it has logged, its access log included.
    pub fn log(&self) -> String {
        self.process.log()
    }

    async fn await_ready(&mut self) {
        let (process, admin) = (&mut self.process, &self.admin);
        let ready = async || {
            process.assert_running();
            HttpResponse::try_send(admin.request("GET", "/ready")).await.filter(|answer| answer.status == 200)
        };
        eventually("Envoy is ready", ready, String::new).await;
    }
}

/// Edits a configuration in one place, which must be there.
#[track_caller]
pub fn replaced(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "the configuration says `{from}` no longer");
    text.replace(from, to)
}

/// Replaces the last value before each mark: `port_value: 9901 } # demo:admin_port`.
fn fill(text: &str, mark: &str, value: &str) -> String {
    let mark = format!("# demo:{mark}");
    let line = |line: &str| match line.split_once(&mark) {
        None => line.to_owned(),
        Some((before, _)) => {
            let (head, tail) = before.rsplit_once(": ").expect("a value stands before the mark");
            let closing: String = tail.chars().filter(|character| *character == '}').collect();
            format!("{head}: {value} {closing}")
        }
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}
