//! One process of a control plane under test, with its data directory and its ports.

use crate::{
    http::{HttpClient, HttpResponse},
    process::{Process, eventually, free_port, wrapped},
    tools,
};
use std::{collections::HashMap, path::Path};
use tempfile::TempDir;

/// What replicas share besides the database: the keys and the development authority, so that each accepts what another
/// issued, and `dev.env`, so that only the first creates a service. `master.key` does not exist if the key is a setting.
const SHARED_FILES: [&str; 5] = ["master.key", "operator.key", "ca.pem", "ca.key", "dev.env"];

/// A process with its files.
pub(super) struct Replica {
    // The process is declared before the folder, because dropping the process prints the log in the folder if the test
    // panics.
    pub(super) process: Process,
    pub(super) folder: TempDir,
    /// The base URL of the API.
    pub(super) url: String,
    /// The URL of the admin port.
    admin: String,
    /// The settings of the process, which include its ports.
    pub(super) settings: Vec<String>,
    environment: Environment,
    /// The program that runs the process, with its arguments; empty if the process runs by itself.
    pub(super) wrapper: Vec<String>,
}

/// Environment variables of a process, besides those of the test.
pub(super) type Environment = Vec<(String, String)>;

impl Replica {
    /// Starts the first process. Also returns the variables of its `dev.env`, without the prefix `COUNTERSIGN_`.
    pub(super) async fn start(settings: &[String], environment: Environment) -> (Self, HashMap<String, String>) {
        let folder = tempfile::tempdir().expect("a temporary folder can be created");
        // The settings of the test come last, so that they can name a port.
        let settings: Vec<_> = new_ports().into_iter().chain(settings.iter().cloned()).collect();
        let process = launch(folder.path(), &settings, &environment, &[]);
        let env = wait_for_env(folder.path(), &process).await;
        let has_public_url = settings.iter().any(|setting| setting.starts_with("public_url="));
        let url = if has_public_url { wait_for_url(&process).await } else { env["URL"].clone() };
        let admin = env["ADMIN_URL"].clone();
        (Self { process, folder, url, admin, settings, environment, wrapper: Vec::new() }, env)
    }

    /// Starts another replica of the same control plane, which has this `dev.env`.
    pub(super) async fn start_another(
        &self,
        settings: &[String],
        env: &HashMap<String, String>,
        environment: Environment,
    ) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be created");
        for name in SHARED_FILES.into_iter().filter(|name| self.folder.path().join(name).exists()) {
            std::fs::copy(self.folder.path().join(name), folder.path().join(name)).expect("the file can be copied");
        }
        let ports = new_ports();
        let port = |number: usize| ports[number].rsplit(':').next().unwrap_or_default();
        let (url, admin) = (format!("https://localhost:{}", port(0)), format!("http://127.0.0.1:{}", port(2)));
        // Both replicas are one issuer, whose name is the URL of the first. The ports come last, because a port that the
        // test names is in use.
        let public_url = format!("public_url={}", env["URL"]);
        let settings: Vec<_> = settings.iter().cloned().chain([public_url]).chain(ports.iter().cloned()).collect();
        let process = launch(folder.path(), &settings, &environment, &[]);
        let replica = Self { process, folder, url, admin, settings, environment, wrapper: Vec::new() };
        replica.wait_until_ready().await;
        replica
    }

    /// The URL of the sync port.
    pub(super) fn sync_url(&self) -> String {
        let port = self.settings.iter().rev().find_map(|setting| setting.strip_prefix("listen.sync=127.0.0.1:"));
        format!("https://localhost:{}", port.expect("the sync port is set"))
    }

    /// Starts the process again, after it has ended.
    pub(super) fn launch_again(&mut self) {
        self.process = launch(self.folder.path(), &self.settings, &self.environment, &self.wrapper);
    }

    pub(super) async fn wait_until_ready(&self) {
        let admin = HttpClient::plain(self.admin.clone());
        let ready = async || {
            HttpResponse::try_send(admin.request("GET", "/readyz")).await.filter(|response| response.status == 200)
        };
        eventually("the control plane is ready", ready, || self.process.log()).await;
    }
}

/// Settings with free ports for the API, the sync stream and the admin endpoints. The ports are fixed, so that a restart can
/// reuse them.
fn new_ports() -> [String; 3] {
    ["api", "sync", "admin"].map(|port| format!("listen.{port}=127.0.0.1:{}", free_port()))
}

fn launch(folder: &Path, settings: &[String], environment: &Environment, wrapper: &[String]) -> Process {
    let mut command = wrapped(&tools::binary("countersign-control-plane"), wrapper);
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    command.args(["--dev", "--set", &format!("data_dir={}", folder.display())]);
    for setting in settings {
        command.args(["--set", setting]);
    }
    Process::start(command, &folder.join("log"))
}

/// Reads the API port from the log. With `public_url` set, `dev.env` does not contain the local address.
async fn wait_for_url(process: &Process) -> String {
    let logged = async || Some(process.log().split_once(" api=127.0.0.1:")?.1.split(' ').next()?.to_owned());
    let port = eventually("the log contains the address", logged, || process.log()).await;
    format!("https://localhost:{port}")
}

async fn wait_for_env(folder: &Path, process: &Process) -> HashMap<String, String> {
    let file = folder.join("dev.env");
    let text = eventually("dev.env exists", async || std::fs::read_to_string(&file).ok(), || process.log()).await;
    let lines = text.lines().filter_map(|line| line.strip_prefix("COUNTERSIGN_")?.split_once('='));
    lines.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}
