//! Starts the measured servers, and pins each process to a processor.

use countersign_process::{Clock, SystemClock};
use countersign_proto::envoy::service::auth::v3::CheckResponse;
use countersign_tests::process::{Process, eventually};
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

/// Moves the main thread of this process to a processor, with all processes and threads that it starts. The other threads stay:
/// `taskset` would fail if one of them ended while it is moved.
fn pin_main_thread(core: &str) {
    taskset(&["--pid", "--cpu-list", core, &std::process::id().to_string()]);
}

fn taskset(arguments: &[&str]) {
    let output = Command::new("taskset").args(arguments).output().expect("`taskset` is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Runs `start`. The servers that it starts, and all processes that they start, run on the processor of the servers.
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

/// How long the processor of the servers has run since the boot, in ticks of the kernel: in total, and without work.
pub struct ServerCoreTime {
    all: u64,
    idle: u64,
}

impl ServerCoreTime {
    /// Reads `/proc/stat`: the times as user, nice, system, idle and waiting for the disk, then those for interrupts.
    pub fn now() -> Self {
        let stat = std::fs::read_to_string("/proc/stat").expect("`/proc/stat` is readable");
        let name = format!("cpu{SERVER_CORE} ");
        let line = stat.lines().find_map(|line| line.strip_prefix(&name)).expect("the processor exists");
        let ticks: Vec<u64> = line.split(' ').map(|ticks| ticks.parse().expect("ticks are a number")).collect();
        Self { all: ticks.iter().take(8).sum(), idle: ticks[3] + ticks[4] }
    }

    /// In which share of the time since `self` was read the processor worked.
    pub fn busy_since(&self) -> f64 {
        let now = Self::now();
        1.0 - (now.idle - self.idle) as f64 / (now.all - self.all).max(1) as f64
    }
}

/// A server in a process of this program, with one thread on the processor of the servers.
pub struct ChildServer {
    process: Process,
    folder: TempDir,
}

impl ChildServer {
    /// Starts the constant route on this port.
    pub async fn start_constant_route(port: u16) -> Self {
        let server = Self::start(&["constant-route", &format!("127.0.0.1:{port}")], new_folder());
        let listens = async || TcpStream::connect(("127.0.0.1", port)).await.ok();
        eventually("the server listens", listens, || server.process.log()).await;
        server
    }

    /// Starts a server on a Unix socket that answers every check with this response.
    pub async fn start_allow_all(response: &CheckResponse) -> Self {
        let folder = new_folder();
        let (socket, file) = (socket_in(&folder), folder.path().join("response"));
        std::fs::write(&file, response.encode_to_vec()).expect("the file can be written");
        let server = Self::start(&["allow-all", text(&socket), text(&file)], folder);
        eventually("the server listens", async || UnixStream::connect(&socket).await.ok(), || server.process.log())
            .await;
        server
    }

    fn start(arguments: &[&str], folder: TempDir) -> Self {
        let mut program = Command::new(std::env::current_exe().expect("the path of this program is known"));
        program.args(arguments);
        let process = Process::start(program, &folder.path().join("log"));
        pin(process.id(), SERVER_CORE);
        Self { process, folder }
    }

    pub fn id(&self) -> u32 {
        self.process.id()
    }

    pub fn socket(&self) -> PathBuf {
        socket_in(&self.folder)
    }
}

fn new_folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder can be created")
}

fn socket_in(folder: &TempDir) -> PathBuf {
    folder.path().join("server.sock")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary paths are UTF-8")
}

/// All callers call for a time, each one call after the other. `call` gets the number of the caller and of its call.
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
