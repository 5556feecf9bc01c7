//! Load over HTTP/1.1 by the program `wrk`.

use crate::servers::LOAD_CORE;
use countersign_tests::tools;
use tempfile::NamedTempFile;
use tokio::process::Command;

/// The time of a measurement, in seconds.
pub const SECONDS: u32 = 1;

/// How long `wrk` waits for a response. After that, the request counts as an error.
const TIMEOUT: &str = "10s";

/// Requests that differ, which `wrk` sends in turn, again and again.
pub struct Requests {
    lines: NamedTempFile,
    header: Option<&'static str>,
}

impl Requests {
    /// POST requests with these forms.
    pub fn with_forms(forms: &[String]) -> Self {
        Self { lines: file_of(forms), header: None }
    }

    /// GET requests with these values of a header.
    pub fn with_header(header: &'static str, values: &[String]) -> Self {
        Self { lines: file_of(values), header: Some(header) }
    }
}

fn file_of(lines: &[String]) -> NamedTempFile {
    let file = NamedTempFile::new().expect("a temporary file can be created");
    std::fs::write(file.path(), lines.join("\n")).expect("the file can be written");
    file
}

/// Sends the same GET request with one thread, and returns the responses per second. All responses must be successful.
pub async fn wrk(url: &str, headers: &[&str], connections: &str) -> f64 {
    run(command(headers, connections, SECONDS).arg(url)).await
}

/// Like `wrk`, with requests that differ, for this number of seconds.
pub async fn wrk_in_turn(url: &str, headers: &[&str], connections: &str, requests: &Requests, seconds: u32) -> f64 {
    let mut command = command(headers, connections, seconds);
    command.arg("-s").arg(tools::root().join("tests/examples/bench/requests.lua"));
    command.arg(url).arg("--").arg(requests.lines.path()).args(requests.header);
    run(&mut command).await
}

fn command(headers: &[&str], connections: &str, seconds: u32) -> Command {
    let mut command = Command::new("taskset");
    command.args(["--cpu-list", LOAD_CORE]).arg(tools::bench_program("wrk"));
    command.args(["-t1", "-c", connections, "-d", &format!("{seconds}s"), "--timeout", TIMEOUT]);
    for header in headers {
        command.args(["-H", header]);
    }
    command
}

async fn run(command: &mut Command) -> f64 {
    let output = command.output().await.expect("`wrk` is installed");
    let text = String::from_utf8_lossy(&output.stdout);
    let is_clean = output.status.success() && !text.contains("Non-2xx") && !text.contains("Socket errors");
    assert!(is_clean, "{command:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    let per_second = text.lines().find_map(|line| line.strip_prefix("Requests/sec:")).expect("`wrk` prints its rate");
    per_second.trim().parse().expect("the rate is a number")
}
