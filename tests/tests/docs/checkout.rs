//! A temporary checkout with the files that a page needs; its servers use free ports.

use crate::page::Block;
use countersign_tests::{control_plane::no_limits, process::free_port, tools};
use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
};
use tempfile::TempDir;

/// Ports in pages and examples: of the programs, Envoy's listener and admin port, the service, and a webhook receiver.
const PORTS: [&str; 7] = [API, SYNC, SIDECAR_ADMIN, "10000", "9901", "8080", "9000"];
const API: &str = "8443";
const SYNC: &str = "8444";
const SIDECAR_ADMIN: &str = "9092";

/// A checkout with built programs.
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

    /// The environment of a new user.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        let path = |relative| self.path(relative).display().to_string();
        let programs = std::env::var("PATH").unwrap_or_default();
        vec![("PATH", programs), ("HOME", path("home")), ("ENVOY_BIN", path("envoy")), ("TMPDIR", path("home"))]
    }

    /// The block with the ports of this checkout.
    pub fn with_free_ports(&self, block: Block) -> Block {
        let (code, expected) = (self.replaced(&block.code), block.expected.as_deref().map(|text| self.replaced(text)));
        Block { code, expected, ..block }
    }

    fn replaced(&self, text: &str) -> String {
        self.ports.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
    }

    fn copy_examples(&self) {
        for example in ["envoy/envoy.yaml", "agent-openssl-curl/agent.sh"] {
            let (from, to) = (tools::root().join("examples").join(example), self.path("examples").join(example));
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            write_executable(&to, &self.replaced(&fs::read_to_string(from).unwrap()));
        }
    }

    /// Puts the programs where a page expects them. Flags set ports and limits, because the programs share an environment.
    fn add_programs(&self) {
        let at = |name: &str, port: &str| format!("{name}=127.0.0.1:{}", self.replaced(port));
        let admin = format!("listen.admin=127.0.0.1:{}", free_port());
        let ports = [at("listen.api", API), at("listen.sync", SYNC), admin];
        let limits = no_limits().map(|(key, value)| format!("{key}={value}"));
        self.add_program("countersign", &[]);
        self.add_program("countersign-control-plane", &ports.into_iter().chain(limits).collect::<Vec<_>>());
        self.add_program("countersign-ext-authz", &[at("listen.admin", SIDECAR_ADMIN)]);
        // Several instances of Envoy can run only without hot restart.
        let envoy = format!("exec '{}' --disable-hot-restart --concurrency 1 \"$@\"", tools::envoy().display());
        write_executable(&self.path("envoy"), &format!("#!/bin/sh\n{envoy}\n"));
    }

    fn add_program(&self, name: &str, settings: &[String]) {
        let (program, flags) = (tools::binary(name), settings.iter().map(|setting| format!(" --set {setting}")));
        let line = format!("exec '{}' \"$@\"{}", program.display(), flags.collect::<String>());
        write_executable(&self.path("target/debug").join(name), &format!("#!/bin/sh\n{line}\n"));
    }
}

fn write_executable(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}
