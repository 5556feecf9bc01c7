//! Starts the measured servers, and pins each process to a processor.

use countersign_process::{Clock, SystemClock};
use countersign_tests::process::{Process, eventually};
use envoy_types::pb::envoy::service::auth::v3::CheckResponse;
use futures_util::future::join_all;
use prost::Message as _;
use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};
use tempfile::TempDir;
use tokio::net::{TcpStream, UnixStream};

/// The processor of the measured servers.
pub const SERVER_CORE: &str = "0";

/// The processor of this process, which sends the load.
pub const LOAD_CORE: &str = "1";

/// The environment of servers with one thread.
pub const ONE_THREAD: [(&str, &str); 1] = [("TOKIO_WORKER_THREADS", "1")];

/// Moves all threads of a process to a processor, with all threads that they start.
pub fn pin(process: u32, core: &str) {
    taskset(&["--all-tasks", "--pid", "--cpu-list", core, &process.to_string()]);
}

/// Moves the main thread of this process to a processor, with all processes and threads that it starts. Other threads may end while
/// they are moved, which `taskset` takes for an error.
fn pin_main_thread(core: &str) {
    taskset(&["--pid", "--cpu-list", core, &std::process::id().to_string()]);
}

fn taskset(arguments: &[&str]) {
    let output = Command::new("taskset").args(arguments).output().expect("`taskset` is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Starts servers whose processes belong to the processor of the servers, with all processes that they start.
pub async fn start_on_server_core<T>(start: impl Future<Output = T>) -> T {
    pin_main_thread(SERVER_CORE);
    let started = start.await;
    pin_main_thread(LOAD_CORE);
    started
}

/// Runs work of this process on the processor of the servers.
pub fn on_server_core<T>(work: impl FnOnce() -> T) -> T {
    pin_main_thread(SERVER_CORE);
    let result = work();
    pin_main_thread(LOAD_CORE);
    result
}

/// A server in a process of this program, with one thread on the processor of the servers.
pub struct ChildServer {
    process: Process,
    folder: TempDir,
}

impl ChildServer {
    /// Starts `command` on a TCP port, or on a Unix socket without a port.
    pub async fn start(command: &str, port: Option<u16>) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be created");
        Self::start_in(folder, (command, None), port).await
    }

    /// Starts a server on a Unix socket that answers every check with this response.
    pub async fn start_allow_all(response: &CheckResponse) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be created");
        let file = folder.path().join("response");
        std::fs::write(&file, response.encode_to_vec()).expect("the file can be written");
        Self::start_in(folder, ("allow-all", Some(&file)), None).await
    }

    /// Starts `command` with its socket and its log in this folder. `file` is a further argument.
    async fn start_in(folder: TempDir, (command, file): (&str, Option<&Path>), port: Option<u16>) -> Self {
        let socket = folder.path().join("server.sock");
        let address = port.map_or_else(|| format!("unix:{}", socket.display()), |port| format!("127.0.0.1:{port}"));
        let mut program = Command::new(std::env::current_exe().expect("the path of this program is known"));
        program.args([command, &address]).args(file);
        let process = Process::start(program, &folder.path().join("log"));
        pin(process.id(), SERVER_CORE);
        let listens = async || match port {
            Some(port) => TcpStream::connect(("127.0.0.1", port)).await.ok().map(drop),
            None => UnixStream::connect(&socket).await.ok().map(drop),
        };
        eventually("the server listens", listens, || process.log()).await;
        Self { process, folder }
    }

    pub fn id(&self) -> u32 {
        self.process.id()
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("server.sock")
    }
}

/// Calls with all callers for a time, each one call after the other. `call` gets the number of the caller and of its call.
pub async fn per_second(callers: usize, time: Duration, call: impl AsyncFn(usize, u64)) -> f64 {
    let started = SystemClock.since_boot();
    let elapsed = || SystemClock.since_boot().saturating_sub(started);
    let caller = async |caller| {
        let mut calls = 0;
        while elapsed() < time {
            call(caller, calls).await;
            calls += 1;
        }
        calls
    };
    let calls: u64 = join_all((0..callers).map(caller)).await.into_iter().sum();
    calls as f64 / elapsed().as_secs_f64()
}

/// Calls `action` again and again for `time`. Returns the calls per second.
pub fn repeated(time: Duration, mut action: impl FnMut()) -> f64 {
    let started = SystemClock.since_boot();
    let mut count = 0_u64;
    while SystemClock.since_boot() < started + time {
        action();
        count += 1;
    }
    count as f64 / seconds_since(started)
}

/// The seconds since a time after the boot.
pub fn seconds_since(started: Duration) -> f64 {
    SystemClock.since_boot().saturating_sub(started).as_secs_f64()
}

/// The SHA-256 of a program in hex, so that a report tells which program was measured.
pub fn sha256_hex(program: &Path) -> String {
    use aws_lc_rs::digest::{SHA256, digest};
    hex::encode(digest(&SHA256, &std::fs::read(program).expect("the program is readable")))
}
