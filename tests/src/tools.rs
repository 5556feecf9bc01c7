//! Paths of programs: our binaries in the target folder, others where `scripts/tools.sh tests` installs them.

use std::path::{Path, PathBuf};

/// The root of the checkout.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the test crate has a parent folder").to_owned()
}

/// One of our binaries, from the profile of this test.
pub fn binary(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    let folder = test.ancestors().nth(2).expect("tests lie in target/<profile>/deps");
    existing(folder.join(name), "cargo build --workspace --bins")
}

/// Envoy.
pub fn envoy() -> PathBuf {
    existing(root().join(".tools/bin/envoy"), "scripts/tools.sh tests")
}

/// Node.js.
pub fn node() -> PathBuf {
    existing(root().join(".tools/bin/node"), "scripts/tools.sh tests")
}

/// A Python with `PyJWT`.
pub fn python() -> PathBuf {
    existing(root().join(".tools/venv/bin/python"), "scripts/tools.sh tests")
}

/// An executable of a Python package.
pub fn python_program(name: &str) -> PathBuf {
    existing(root().join(".tools/venv/bin").join(name), "scripts/tools.sh tests")
}

/// An executable of PostgreSQL.
pub fn postgres(program: &str) -> PathBuf {
    existing(root().join(".tools/postgresql").join(program), "scripts/tools.sh tests")
}

/// The Redis server.
pub fn redis() -> PathBuf {
    existing(root().join(".tools/bin/redis-server"), "scripts/tools.sh tests")
}

/// `prometheus` or `promtool`.
pub fn prometheus(program: &str) -> PathBuf {
    existing(root().join(".tools/bin").join(program), "scripts/tools.sh tests")
}

fn existing(path: PathBuf, command: &str) -> PathBuf {
    assert!(path.exists(), "{} is missing: run `{command}`", path.display());
    path
}
