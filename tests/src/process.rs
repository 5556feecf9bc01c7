//! Processes that end with the test, and waiting for conditions.

use std::{
    fs::File,
    net::TcpListener,
    ops::Range,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

/// How long anything may take on a busy machine.
const DEADLINE: Duration = Duration::from_secs(20);

/// Lines of a log that a test which failed shows.
const LAST_LINES: usize = 40;

/// A running process whose output goes to a file.
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts the command; its output is appended to `log`.
    pub fn start(mut command: Command, log: &Path) -> Self {
        let file = File::options().create(true).append(true).open(log).expect("the log can be written");
        let errors = file.try_clone().expect("a file can be written twice");
        let child = command.stdin(Stdio::null()).stdout(file).stderr(errors).spawn();
        let child = child.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Self { child, log: log.to_owned() }
    }

    /// What it has written so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Ends it at once, as a crash would.
    pub fn kill(&mut self) {
        let _ended_already = self.child.kill();
        let _status = self.child.wait();
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal, by name.
    pub fn signal(&self, name: &str) {
        Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status().expect("kill exists");
    }

    /// Waits until it has ended.
    pub fn wait(&mut self) {
        let _status = self.child.wait();
    }

    /// Asks it to stop and waits until it has.
    pub async fn terminate(&mut self) -> ExitStatus {
        let pid = self.child.id().to_string();
        Command::new("kill").arg(pid).status().expect("kill exists");
        self.ended().await
    }

    /// Waits until it ends by itself.
    pub async fn ended(&mut self) -> ExitStatus {
        let log = self.log.clone();
        let child = &mut self.child;
        eventually(
            "the process ends",
            async || child.try_wait().expect("our child"),
            || std::fs::read_to_string(&log).unwrap_or_default(),
        )
        .await
    }

    /// Bytes of memory that it has in use, as Linux counts them.
    pub fn resident_memory(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("Linux says it");
        line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") * 1024
    }

    /// Panics, with the log, if it has ended.
    pub fn assert_running(&mut self) {
        if let Some(status) = self.child.try_wait().expect("our child") {
            panic!("ended with {status}:\n{}", self.log());
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<_> = log.lines().collect();
            let last = &lines[lines.len().saturating_sub(LAST_LINES)..];
            eprintln!("---- the end of {}\n{}", self.log.display(), last.join("\n"));
        }
    }
}

/// Waits until `condition` gives something; panics with what `explain` says when the deadline is over.
#[expect(clippy::disallowed_methods, reason = "a deadline of the test itself")]
pub async fn eventually<T>(
    what: &str,
    mut condition: impl AsyncFnMut() -> Option<T>,
    explain: impl FnOnce() -> String,
) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = condition().await {
            return found;
        }
        assert!(began.elapsed() < DEADLINE, "waited in vain until {what}\n{}", explain());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Ports that the system gives to nobody who asks for any: so whoever stops and starts again has his own back.
const PORTS: Range<u16> = 10_000..32_000;

/// How far apart processes begin to look, that run beside each other.
const APART: u32 = 997;

/// A port that nobody listens on now, and that nobody else in this process is given.
pub fn free_port() -> u16 {
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    let first = std::process::id().wrapping_mul(APART);
    let count = PORTS.len().try_into().expect("ports are few");
    let mut ports = (0..count).map(|_| first.wrapping_add(GIVEN.fetch_add(1, Ordering::Relaxed)) % count);
    let found = ports.find_map(|place| {
        let port = PORTS.start + u16::try_from(place).expect("ports are few");
        TcpListener::bind(("127.0.0.1", port)).is_ok().then_some(port)
    });
    found.expect("loopback has free ports")
}
