//! A temporary checkout with the files that a page of the documentation needs. The servers in the checkout use free ports.

use crate::page::Block;
use countersign_tests::{control_plane::unreachable_limits, process::free_port, tools};
use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
};
use tempfile::TempDir;

/// Ports in pages and examples: ports of the programs, of Envoy's listener and admin interface, of the service and of
/// a webhook receiver.
const PORTS: [&str; 7] = [API, SYNC, SIDECAR_ADMIN, "10000", "9901", "8080", "9000"];

/// The files of `examples` that pages use.
const EXAMPLES: [&str; 6] = [
    "envoy/envoy.yaml",
    "agent-openssl-curl/agent.sh",
    "mcp/envoy.yaml",
    "mcp/rules.toml",
    "mcp/server.py",
    "mcp/client.py",
];

const API: &str = "8443";
const SYNC: &str = "8444";
const SIDECAR_ADMIN: &str = "9092";

/// A temporary checkout with built programs.
pub struct Checkout {
    folder: TempDir,
    ports: [(&'static str, String); PORTS.len()],
}

impl Checkout {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let checkout = Self { folder, ports: PORTS.map(|port| (port, free_port().to_string())) };
        for path in ["home", "target/debug", "examples"] {
            fs::create_dir_all(checkout.path(path)).unwrap();
        }
        symlink(tools::root().join("scripts"), checkout.path("scripts")).unwrap();
        checkout.copy_examples();
        checkout.add_programs();
        checkout
    }

    /// A path in the checkout.
    pub fn path(&self, relative: &str) -> PathBuf {
        self.folder.path().join(relative)
    }

    /// The environment variables of a user who follows the page for the first time.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        let path = |relative| self.path(relative).display().to_string();
        let programs = std::env::var("PATH").unwrap_or_default();
        vec![("PATH", programs), ("HOME", path("home")), ("ENVOY_BIN", path("envoy")), ("TMPDIR", path("home"))]
    }

    /// Replaces the ports in a block with the ports of this checkout.
    pub fn with_free_ports(&self, block: Block) -> Block {
        let (code, expected) =
            (self.replace_ports(&block.code), block.expected.as_deref().map(|text| self.replace_ports(text)));
        Block { code, expected, ..block }
    }

    fn replace_ports(&self, text: &str) -> String {
        // A free port such as 28080 contains a port of the pages, so no port is replaced in the text of another.
        let marker = |index: usize| format!("\0{}\0", char::from(b'a' + u8::try_from(index).unwrap()));
        let ports = self.ports.iter().enumerate();
        let without_ports =
            ports.clone().fold(text.to_owned(), |text, (index, (from, _))| text.replace(from, &marker(index)));
        ports.fold(without_ports, |text, (index, (_, to))| text.replace(&marker(index), to))
    }

    fn copy_examples(&self) {
        for example in EXAMPLES {
            let (from, to) = (tools::root().join("examples").join(example), self.path("examples").join(example));
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            write_executable(&to, &self.replace_ports(&fs::read_to_string(from).unwrap()));
        }
    }

    /// Creates a wrapper script for each program at the path that the pages use. The wrapper scripts set ports and
    /// limits with flags, because all programs share one environment.
    fn add_programs(&self) {
        let listen_setting = |name: &str, port: &str| format!("{name}=127.0.0.1:{}", self.replace_ports(port));
        let admin = format!("listen.admin=127.0.0.1:{}", free_port());
        let ports = [listen_setting("listen.api", API), listen_setting("listen.sync", SYNC), admin];
        let limits = unreachable_limits().map(|(key, value)| format!("{key}={value}"));
        self.add_program("countersign", &[]);
        self.add_program("countersign-control-plane", &ports.into_iter().chain(limits).collect::<Vec<_>>());
        self.add_program("countersign-ext-authz", &[listen_setting("listen.admin", SIDECAR_ADMIN)]);
        // The pages tell a reader to install Python and npm packages. The tests use interpreters that have these packages already.
        for (name, program) in [("python", tools::python()), ("python3", tools::python()), ("node", tools::node())] {
            let script = format!("#!/bin/sh\nexec '{}' \"$@\"\n", program.display());
            write_executable(&self.path("target/debug").join(name), &script);
        }
        symlink(tools::root().join(".tools/npm-oauth/node_modules"), self.path("node_modules")).unwrap();
        // Envoy's hot restart is disabled, because several Envoy processes with hot restart cannot run on one machine.
        let envoy = format!("exec '{}' --disable-hot-restart --concurrency 1 \"$@\"", tools::envoy().display());
        write_executable(&self.path("envoy"), &format!("#!/bin/sh\n{envoy}\n"));
    }

    fn add_program(&self, name: &str, settings: &[String]) {
        let (program, flags) = (tools::binary(name), settings.iter().map(|setting| format!(" --set {setting}")));
        let line = format!("exec '{}' \"$@\"{}", program.display(), flags.collect::<String>());
        // A command of the sidecar such as `explain` accepts no settings, and names the admin port itself.
        let command = format!("[ \"$1\" = explain ] && exec '{}' \"$@\"", program.display());
        write_executable(&self.path("target/debug").join(name), &format!("#!/bin/sh\n{command}\n{line}\n"));
    }
}

fn write_executable(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}
