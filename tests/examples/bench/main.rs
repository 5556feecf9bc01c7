//! Measures the speed of Countersign in alternation with servers that show what is possible.
//!
//! `make bench` builds everything with the release profile, runs this program and writes `bench/report.md`. The first argument is
//! the file for the figures, which the program writes anew after each part. Further arguments select parts. `BENCH_ROUNDS` (10) is
//! the number of rounds. `make bench-check` sets `BENCH_CHECK`, which makes all measurements short, with one round each.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a benchmark panics on errors")]
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "the figures are printed with a few digits"
)]

mod allow_all;
mod constant_route;
mod deployment;
mod direct;
mod envoy;
mod growth;
mod hydra;
mod latency;
mod oauth2_proxy;
mod peers;
mod replay;
mod replicas;
mod rounds;
mod scale;
mod servers;
mod signatures;
mod tokens;
mod verify;
mod wrk;

use countersign_process::{Clock as _, SystemClock};
use countersign_tests::tools;
use serde_json::json;
use servers::{LOAD_CORE, pin, sha256_hex};
use std::{collections::BTreeMap, process::Command};

/// The parts of the benchmark. Without arguments, all of them are measured.
const PARTS: [&str; 7] = ["direct", "latency", "envoy", "verify", "peers", "growth", "replicas"];

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["allow-all", socket, response] => return allow_all::serve(socket, response).await,
        ["constant-route", address] => return constant_route::serve(address).await,
        _ => {}
    }
    let rounds = scale::rounds();
    assert!(rounds > 0, "BENCH_ROUNDS must be a number from 1");
    let [file, parts @ ..] = &arguments[..] else { panic!("the first argument is the file for the figures") };
    assert!(!PARTS.contains(&file.as_str()), "the first argument is the file for the figures, not the part {file}");
    let parts = if parts.is_empty() { PARTS.map(str::to_owned).to_vec() } else { parts.to_vec() };
    if let Some(unknown) = parts.iter().find(|part| !PARTS.contains(&part.as_str())) {
        panic!("unknown part {unknown}: use {}", PARTS.join(", "));
    }
    // The file with the figures may belong to the repository, and writing it would be a change. So read the commit before.
    let mut run = run(rounds);
    let started = SystemClock.since_boot();
    pin(std::process::id(), LOAD_CORE);
    let (mut results, mut bytes) = (BTreeMap::new(), BTreeMap::new());
    for part in parts {
        results.extend(match part.as_str() {
            "direct" => direct::measure(rounds).await,
            "latency" => latency::measure(rounds).await,
            "envoy" => envoy::measure(rounds).await,
            "verify" => verify::measure(rounds).await,
            "peers" => peers::measure(rounds).await,
            "growth" => {
                let growth = growth::measure(rounds).await;
                bytes = growth.bytes;
                growth.comparisons
            }
            _ => replicas::measure(rounds).await,
        });
        let mut report = json!(results);
        run["minutes"] = json!(SystemClock.since_boot().saturating_sub(started).as_secs() / 60);
        report["run"] = run.clone();
        report["bytes"] = json!(bytes);
        std::fs::write(file, format!("{report:#}\n")).expect("the file of the first argument can be written");
    }
}

/// What was measured, and where.
fn run(rounds: usize) -> serde_json::Value {
    let binaries =
        ["countersign-control-plane", "countersign-ext-authz"].map(|name| (name, sha256_hex(&tools::binary(name))));
    let peers = ["hydra", "oauth2-proxy"].map(|name| (name, tools::optional_program(name)));
    let absent: Vec<_> = peers.into_iter().filter(|(_, path)| path.is_none()).map(|(name, _)| name).collect();
    if !absent.is_empty() {
        eprintln!("not measured, because building it needs Go: {}", absent.join(", "));
    }
    json!({
        "commit": commit(),
        "rounds": rounds,
        "processors": std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        "machine": machine(),
        "binaries": BTreeMap::from(binaries),
        "absent": absent,
    })
}

/// The model of the processors, and the kernel.
fn machine() -> String {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let processors = read("/proc/cpuinfo");
    let model = processors.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
    format!("{}, Linux {}", model.trim_start_matches([' ', '\t', ':']), read("/proc/sys/kernel/osrelease").trim())
}

/// The commit that was measured, with `-dirty` if the sources differ from it.
fn commit() -> String {
    let output = Command::new("git").args(["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]).output();
    String::from_utf8_lossy(&output.expect("`git` is installed").stdout).trim().to_owned()
}
