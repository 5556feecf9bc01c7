//! Child processes that end with the test, waiting for conditions, and free ports.

use std::{
    fs::File,
    net::TcpListener,
    ops::Range,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

/// How long [`eventually`] waits, with a margin for busy machines.
const DEADLINE: Duration = Duration::from_secs(20);

/// Unit of CPU times in `/proc/PID/stat` on Linux (`USER_HZ`).
const TICK: Duration = Duration::from_millis(10);

/// How many log lines a failed test prints for each process.
const LAST_LINES: usize = 40;

/// A command that starts a program. With a wrapper, such as Valgrind and its arguments, it starts the wrapper, which starts the program.
pub fn wrapped(program: &Path, wrapper: &[String]) -> Command {
    let Some((outer, arguments)) = wrapper.split_first() else { return Command::new(program) };
    let mut command = Command::new(outer);
    command.args(arguments).arg(program);
    command
}

/// A child process with its output in a file. Dropping the [`Process`] kills the child process.
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a command and appends its output to `log`.
    pub fn start(mut command: Command, log: &Path) -> Self {
        let file = File::options().create(true).append(true).open(log).expect("the log can be written");
        let errors = file.try_clone().expect("the file handle of the log can be cloned");
        let child = command.stdin(Stdio::null()).stdout(file).stderr(errors).spawn();
        let child = child.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Self { child, log: log.to_owned() }
    }

    /// The output so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Kills the process.
    pub fn kill(&mut self) {
        let _already_ended = self.child.kill();
        let _status = self.child.wait();
    }

    /// Process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal by name. With `STOP` and `KILL`, returns when no thread of the process runs any more.
    pub fn signal(&self, name: &str) {
        signal(self.id(), name);
    }

    /// Waits for the exit, without a deadline.
    pub fn wait(&mut self) {
        let _status = self.child.wait();
    }

    /// Sends SIGTERM and waits for the exit.
    pub async fn terminate(&mut self) -> ExitStatus {
        self.signal("TERM");
        self.wait_for_exit().await
    }

    /// Waits for the exit.
    pub async fn wait_for_exit(&mut self) -> ExitStatus {
        let log = self.log.clone();
        let child = &mut self.child;
        eventually(
            "the process ends",
            async || child.try_wait().expect("the status of the child process is readable"),
            || std::fs::read_to_string(&log).unwrap_or_default(),
        )
        .await
    }

    /// Resident memory in bytes (`VmRSS`).
    pub fn resident_memory(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("the process runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("/proc/PID/status has VmRSS");
        line.trim().trim_end_matches(" kB").parse::<usize>().expect("the value is a number") * 1024
    }

    /// CPU time that the process has used, in user mode and in the kernel.
    pub fn cpu_time(&self) -> Duration {
        let [user, kernel] = [11, 12].map(|field| stat_number(self.id(), field).expect("the process runs"));
        (user + kernel) * TICK
    }

    /// Prints the end of the log, for a failed test.
    pub fn print_last_lines(&self) {
        let log = self.log();
        let lines: Vec<_> = log.lines().collect();
        let last = &lines[lines.len().saturating_sub(LAST_LINES)..];
        eprintln!("---- last lines of {}\n{}", self.log.display(), last.join("\n"));
    }

    /// Panics with the log if the process has ended.
    pub fn assert_running(&mut self) {
        if let Some(status) = self.child.try_wait().expect("the status of the child process is readable") {
            panic!("the process ended with {status}:\n{}", self.log());
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            self.print_last_lines();
        }
    }
}

/// Sends a signal by name to a process. With `STOP` and `KILL`, waits until no thread of the process runs, because PostgreSQL does not
/// start while a process of a killed server still uses the shared memory.
pub fn signal(process: u32, name: &str) {
    // The exit code of `kill` is ignored, because the process may have ended.
    Command::new("kill").args(["-s", name, &process.to_string()]).output().expect("`kill` is installed");
    if ["STOP", "KILL"].contains(&name) {
        wait_until_stopped(process);
    }
}

/// Waits until no thread of a process runs. `kill` returns earlier, while threads still run on other processors.
#[expect(clippy::disallowed_methods, reason = "the deadline of a test needs real time")]
fn wait_until_stopped(process: u32) {
    let start = Instant::now();
    while has_running_threads(process) {
        assert!(start.elapsed() < DEADLINE, "process {process} does not stop");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn has_running_threads(process: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{process}/task")) else { return false };
    let mut stats = threads.flatten().filter_map(|thread| std::fs::read_to_string(thread.path().join("stat")).ok());
    // T: stopped, Z: zombie, X: dead.
    stats.any(|stat| stat_field(&stat, 0).is_some_and(|state| !["T", "Z", "X"].contains(&state)))
}

/// The number in a field of `/proc/PID/stat`. [`stat_field`] says how places count.
pub fn stat_number(process: u32, place: usize) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    stat_field(&stat, place)?.parse().ok()
}

/// A field of `/proc/PID/stat` or `/proc/PID/task/TID/stat`. Places count from 0 after the process name, which may contain spaces and
/// parentheses, so the state is at 0, and the parent process at 1.
fn stat_field(stat: &str, place: usize) -> Option<&str> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(place)
}

/// Polls `condition` until it returns a value. After the deadline, panics with the text of `explain`.
#[expect(clippy::disallowed_methods, reason = "the deadline of a test needs real time")]
pub async fn eventually<T>(
    condition_name: &str,
    mut condition: impl AsyncFnMut() -> Option<T>,
    explain: impl FnOnce() -> String,
) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(start.elapsed() < DEADLINE, "timed out while waiting until {condition_name}\n{}", explain());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Ports outside of the ephemeral range, so that a restarted server can bind its port again.
const PORTS: Range<u16> = 10_000..32_000;

/// The distance between the first ports of two test processes with successive ids, so that they rarely try the same ports. It is
/// prime, so that the first ports differ for many ids.
const PORT_DISTANCE: u32 = 997;

/// A free loopback port. No two calls of this function in one process return the same port.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let first = std::process::id().wrapping_mul(PORT_DISTANCE);
    let count = PORTS.len().try_into().expect("the number of ports is small");
    let mut ports = (0..count).map(|_| first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % count);
    let port = ports.find_map(|offset| {
        let port = PORTS.start + u16::try_from(offset).expect("the number of ports is small");
        TcpListener::bind(("127.0.0.1", port)).is_ok().then_some(port)
    });
    port.expect("loopback has free ports")
}
