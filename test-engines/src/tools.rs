//! Paths of programs: the binaries of this workspace are in the target folder, `scripts/tools.sh tests` installs the others.

use std::path::{Path, PathBuf};

/// The root of the checkout.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the test crate has a parent folder").to_owned()
}

/// A binary of this workspace, built with the same profile as the test.
pub fn binary(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the path of the test binary is readable");
    let folder = test.ancestors().nth(2).expect("test binaries are in target/<profile>/deps");
    require_path(folder.join(name), "cargo build --workspace --bins")
}

/// The Envoy binary. `TEST_ENVOY` selects an earlier version, such as `1.36`.
pub fn envoy() -> PathBuf {
    match std::env::var("TEST_ENVOY") {
        Ok(version) => {
            let path = root().join(".tools/envoys").join(version).join("envoy/_bin/envoy");
            require_path(path, "scripts/tools.sh envoys")
        }
        Err(_) => require_path(root().join(".tools/bin/envoy"), "scripts/tools.sh tests"),
    }
}

/// The Node.js binary.
pub fn node() -> PathBuf {
    require_path(root().join(".tools/bin/node"), "scripts/tools.sh tests")
}

/// A Python interpreter with `PyJWT`.
pub fn python() -> PathBuf {
    require_path(root().join(".tools/venv/bin/python"), "scripts/tools.sh tests")
}

/// An executable of a Python package.
pub fn python_program(name: &str) -> PathBuf {
    require_path(root().join(".tools/venv/bin").join(name), "scripts/tools.sh tests")
}

/// An executable of PostgreSQL.
pub fn postgres(program: &str) -> PathBuf {
    require_path(root().join(".tools/postgresql").join(program), "scripts/tools.sh tests")
}

/// A program of Redis, Patroni, Prometheus, Valgrind or nginx.
pub fn program(name: &str) -> PathBuf {
    require_path(root().join(".tools/bin").join(name), "scripts/tools.sh tests")
}

/// A program that only the benchmarks use: the load generator `wrk`, or `cpulimit`, which gives a process a share of a processor.
pub fn bench_program(name: &str) -> PathBuf {
    require_path(root().join(".tools/bin").join(name), "scripts/tools.sh bench")
}

/// `oauth2-proxy`, or `hydra` of Ory, if it is installed. Their builds need Go.
pub fn optional_program(name: &str) -> Option<PathBuf> {
    Some(root().join(".tools/bin").join(name)).filter(|path| path.exists())
}

/// A library that makes system calls of a process fail or return wrong results, by the end of its path.
pub fn fault_library(path: &str) -> PathBuf {
    let folder = root().join(".tools/faults/usr/lib");
    let by_architecture = format!("{}-linux-gnu/{path}", std::env::consts::ARCH);
    let candidates = [folder.join(path), folder.join(by_architecture)];
    let existing = candidates.iter().find(|candidate| candidate.exists());
    require_path(existing.unwrap_or(&candidates[0]).clone(), "scripts/tools.sh tests")
}

fn require_path(path: PathBuf, command: &str) -> PathBuf {
    assert!(path.exists(), "{} is missing: run `{command}`", path.display());
    path
}
