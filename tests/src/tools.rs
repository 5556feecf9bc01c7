//! Where programs are: ours in the target folder, others where `scripts/tools.sh tests` puts them.

use std::path::{Path, PathBuf};

/// The checkout.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests lie in the workspace").to_owned()
}

/// One of our binaries, built with this test.
pub fn binary(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    let folder = test.ancestors().nth(2).expect("tests lie in target/<profile>/deps");
    found(folder.join(name), "cargo build --workspace --bins")
}

/// The real Envoy.
pub fn envoy() -> PathBuf {
    found(root().join(".tools/bin/envoy"), "scripts/tools.sh tests")
}

/// Node.
pub fn node() -> PathBuf {
    found(root().join(".tools/bin/node"), "scripts/tools.sh tests")
}

/// A Python with `PyJWT`.
pub fn python() -> PathBuf {
    found(root().join(".tools/venv/bin/python"), "scripts/tools.sh tests")
}

/// A program that came with a Python package.
pub fn python_program(name: &str) -> PathBuf {
    found(root().join(".tools/venv/bin").join(name), "scripts/tools.sh tests")
}

/// A program of PostgreSQL.
pub fn postgres(program: &str) -> PathBuf {
    found(root().join(".tools/postgresql").join(program), "scripts/tools.sh tests")
}

/// Redis.
pub fn redis() -> PathBuf {
    found(root().join(".tools/bin/redis-server"), "scripts/tools.sh tests")
}

/// A program of Prometheus: the server itself, or `promtool`.
pub fn prometheus(program: &str) -> PathBuf {
    found(root().join(".tools/bin").join(program), "scripts/tools.sh tests")
}

fn found(path: PathBuf, command: &str) -> PathBuf {
    assert!(path.exists(), "{} is missing: run `{command}`", path.display());
    path
}
