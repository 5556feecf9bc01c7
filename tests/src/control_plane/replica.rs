//! One server of a control plane under test, with its data directory and its ports.

use crate::{
    http::HttpClient,
    in_process::{CapturedLog, Server},
    process::{Process, eventually, free_port, wrapped},
    tools,
};
use countersign_control_plane as plane;
use std::{collections::HashMap, path::Path};
use tempfile::TempDir;

/// What replicas share besides the database: the keys and the development authority, so that each accepts what another
/// issued, and `dev.env`, so that only the first creates a service. `master.key` does not exist if the key is a setting.
const SHARED_FILES: [&str; 5] = ["master.key", "operator.key", "ca.pem", "ca.key", "dev.env"];

/// How a server runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// In the process of the test, which starts faster.
    InProcess,
    /// In a process of its own, which can be killed, receive signals, and has a log, memory and files of its own.
    OwnProcess,
}

/// A server that runs.
enum Program {
    InProcess { _server: Server, log: CapturedLog },
    OwnProcess(Process),
}

/// A server with its files.
pub(super) struct Replica {
    // Declared before the folder: if the test panics, dropping a process prints the log in the folder.
    program: Program,
    pub(super) folder: TempDir,
    /// The base URL of the API.
    pub(super) url: String,
    /// The URL of the admin port.
    admin: String,
    /// The settings of the server, which include its ports.
    pub(super) settings: Vec<String>,
    environment: Environment,
    /// The program under which the server runs, such as Valgrind, with its arguments; empty if there is none.
    pub(super) wrapper: Vec<String>,
}

const NO_PROCESS: &str =
    "this control plane runs in the process of the test: start it with `ControlPlane::start_process_with`";

impl Program {
    async fn start(mode: Mode, folder: &Path, settings: &[String], environment: &Environment) -> Self {
        match mode {
            Mode::InProcess => start_in_process(folder, settings, plane::Dependencies::default()).await,
            Mode::OwnProcess => Self::OwnProcess(launch(folder, settings, environment, &[])),
        }
    }

    fn mode(&self) -> Mode {
        match self {
            Self::InProcess { .. } => Mode::InProcess,
            Self::OwnProcess(_) => Mode::OwnProcess,
        }
    }

    fn log(&self) -> String {
        match self {
            Self::InProcess { log, .. } => log.text(),
            Self::OwnProcess(process) => process.log(),
        }
    }
}

/// Environment variables of a process, besides those of the test.
pub(super) type Environment = Vec<(String, String)>;

impl Replica {
    /// Starts the first server. Also returns the variables of its `dev.env`, without the prefix `COUNTERSIGN_`.
    pub(super) async fn start(
        mode: Mode,
        settings: &[String],
        environment: Environment,
    ) -> (Self, HashMap<String, String>) {
        let folder = tempfile::tempdir().expect("a temporary folder can be created");
        let settings = with_ports(settings);
        let program = Program::start(mode, folder.path(), &settings, &environment).await;
        Self::first(program, folder, settings, environment).await
    }

    /// Like `start`, in the process of the test and with these dependencies.
    pub(super) async fn start_with_dependencies(
        dependencies: plane::Dependencies,
        settings: &[String],
    ) -> (Self, HashMap<String, String>) {
        let folder = tempfile::tempdir().expect("a temporary folder can be created");
        let settings = with_ports(settings);
        let program = start_in_process(folder.path(), &settings, dependencies).await;
        Self::first(program, folder, settings, Vec::new()).await
    }

    async fn first(
        program: Program,
        folder: TempDir,
        settings: Vec<String>,
        environment: Environment,
    ) -> (Self, HashMap<String, String>) {
        let env = wait_for_env(folder.path(), &program).await;
        let mut replica = Self::of(program, folder, settings, environment);
        replica.admin.clone_from(&env["ADMIN_URL"]);
        (replica, env)
    }

    fn of(program: Program, folder: TempDir, settings: Vec<String>, environment: Environment) -> Self {
        let url = format!("https://localhost:{}", port_of(&settings, "api"));
        let admin = format!("http://127.0.0.1:{}", port_of(&settings, "admin"));
        Self { program, folder, url, admin, settings, environment, wrapper: Vec::new() }
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
        // Both replicas are one issuer, whose name is the URL of the first. The free ports come last and replace ports that the
        // test has chosen, because the first replica uses those.
        let public_url = format!("public_url={}", env["URL"]);
        let settings: Vec<_> = settings.iter().cloned().chain([public_url]).chain(new_ports()).collect();
        let program = Program::start(self.program.mode(), folder.path(), &settings, &environment).await;
        let replica = Self::of(program, folder, settings, environment);
        replica.wait_until_ready().await;
        replica
    }

    /// The process of the server. Panics if the server runs in the process of the test.
    pub(super) fn process(&self) -> &Process {
        let Program::OwnProcess(process) = &self.program else { panic!("{NO_PROCESS}") };
        process
    }

    pub(super) fn process_mut(&mut self) -> &mut Process {
        let Program::OwnProcess(process) = &mut self.program else { panic!("{NO_PROCESS}") };
        process
    }

    /// The log so far.
    pub(super) fn log(&self) -> String {
        self.program.log()
    }

    /// Prints the end of the log for a failed test. Does nothing for a process that ends with the test: its drop prints the log.
    pub(super) fn print_last_lines(&self, ends_with_test: bool) {
        match &self.program {
            Program::InProcess { log, .. } => log.print_last_lines(),
            Program::OwnProcess(process) if !ends_with_test => process.print_last_lines(),
            Program::OwnProcess(_) => {}
        }
    }

    /// The URL of the sync port.
    pub(super) fn sync_url(&self) -> String {
        format!("https://localhost:{}", port_of(&self.settings, "sync"))
    }

    /// Starts the process again, after it has ended.
    pub(super) fn launch_again(&mut self) {
        self.program =
            Program::OwnProcess(launch(self.folder.path(), &self.settings, &self.environment, &self.wrapper));
    }

    pub(super) async fn wait_until_ready(&self) {
        let admin = HttpClient::plain(self.admin.clone());
        admin.wait_until_ok("/readyz", "the control plane is ready", || self.log()).await;
    }
}

/// Settings with free ports for the API, the sync stream and the admin endpoints. The ports are fixed, so that a restart can
/// reuse them.
fn new_ports() -> [String; 3] {
    ["api", "sync", "admin"].map(|port| format!("listen.{port}=127.0.0.1:{}", free_port()))
}

/// Free ports, then the settings of the test: the last setting counts, so a test can choose a port.
fn with_ports(settings: &[String]) -> Vec<String> {
    new_ports().into_iter().chain(settings.iter().cloned()).collect()
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

async fn start_in_process(folder: &Path, settings: &[String], dependencies: plane::Dependencies) -> Program {
    let data_dir = ("data_dir".to_owned(), folder.display().to_string());
    let split = |setting: &String| {
        let (key, value) = setting.split_once('=').expect("a setting is KEY=VALUE");
        (key.to_owned(), value.to_owned())
    };
    let flags = std::iter::once(data_dir).chain(settings.iter().map(split)).collect();
    let (server, _, log) = Server::start_control_plane(flags, dependencies).await;
    Program::InProcess { _server: server, log }
}

/// The port of this kind in the settings: the last such setting counts.
fn port_of<'a>(settings: &'a [String], kind: &str) -> &'a str {
    let prefix = format!("listen.{kind}=");
    let address = settings.iter().rev().find_map(|setting| setting.strip_prefix(&prefix));
    address.and_then(|address| Some(address.rsplit_once(':')?.1)).expect("the port is set")
}

async fn wait_for_env(folder: &Path, program: &Program) -> HashMap<String, String> {
    let file = folder.join("dev.env");
    let text = eventually("dev.env exists", async || std::fs::read_to_string(&file).ok(), || program.log()).await;
    let lines = text.lines().filter_map(|line| line.strip_prefix("COUNTERSIGN_")?.split_once('='));
    lines.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}
