//! Load over HTTP/1.1 by the program `wrk`.

use crate::servers::LOAD_CORE;
use countersign_tests::tools;
use tokio::process::Command;

/// The time of a measurement.
const TIME: &str = "1s";

/// Sends requests with one thread, and returns the responses per second. All responses must be successful.
pub async fn wrk(url: &str, headers: &[&str], connections: &str) -> f64 {
    let mut command = Command::new("taskset");
    command.args(["--cpu-list", LOAD_CORE]).arg(tools::wrk()).args(["-t1", "-c", connections, "-d", TIME]);
    for header in headers {
        command.args(["-H", header]);
    }
    let output = command.arg(url).output().await.expect("`wrk` is installed");
    let text = String::from_utf8_lossy(&output.stdout);
    let is_clean = output.status.success() && !text.contains("Non-2xx") && !text.contains("Socket errors");
    assert!(is_clean, "{url}: {text}{}", String::from_utf8_lossy(&output.stderr));
    let per_second = text.lines().find_map(|line| line.strip_prefix("Requests/sec:")).expect("`wrk` prints its rate");
    per_second.trim().parse().expect("the rate is a number")
}
