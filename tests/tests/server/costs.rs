//! What a repeated verification of a token costs: instructions and allocations of the whole process, from the bytes of the request
//! to those of the response. Valgrind counts them, so they hardly depend on the machine, and a request that becomes slower fails
//! the test.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]

use countersign_tests::{Agent, ControlPlane, tools};
use std::{collections::HashMap, path::Path, process::Command};

/// The instructions of a repeated verification, in a build for tests.
///
/// If a change makes a verification cheaper, replace the numbers by what the failed test prints. Higher numbers need a reason.
const INSTRUCTIONS: u64 = 970_000;

/// The allocations of a repeated verification in Rust code, which all go through the allocator of the process.
const ALLOCATIONS: u64 = 130;

/// By how much the numbers may differ, in percent: what the process does at intervals counts, too, and on a busy machine the
/// verifications take longer.
const TOLERANCE_PERCENT: u64 = 15;

/// Number of counted verifications.
const VERIFICATIONS: u64 = 200;

#[tokio::test]
async fn costs_of_a_repeated_verification() {
    let mut control = ControlPlane::start_with(&["database.url="]).await;
    let agent = Agent::register(&control, "agent").await;
    let token = agent.token_for(control.service()).await;
    let counts = control.folder().join("callgrind");
    control.restart_under(&valgrind(&counts)).await;
    let verify = async || {
        control.verify(&token).await.expect(200);
    };
    // The first verifications open the connection, and read from the database what later ones find in memory.
    verify().await;
    verify().await;
    monitor(&control, "instrumentation on");
    for _ in 0..VERIFICATIONS {
        verify().await;
    }
    monitor(&control, "instrumentation off");
    monitor(&control, "dump");
    let counted = Counts::read(&counts.with_extension("1"));
    let (instructions, allocations) = (counted.instructions / VERIFICATIONS, counted.allocations / VERIFICATIONS);
    assert!(
        is_near(instructions, INSTRUCTIONS) && is_near(allocations, ALLOCATIONS),
        "a repeated verification has {instructions} instructions and {allocations} allocations; expected are {INSTRUCTIONS} and \
         {ALLOCATIONS}"
    );
}

fn is_near(measured: u64, expected: u64) -> bool {
    measured.abs_diff(expected) <= expected * TOLERANCE_PERCENT / 100
}

/// Starts a program without counting, so that the start is fast.
fn valgrind(counts: &Path) -> Vec<String> {
    let program = tools::valgrind("valgrind").display().to_string();
    let counts = format!("--callgrind-out-file={}", counts.display());
    vec![program, "--tool=callgrind".to_owned(), "--instr-atstart=no".to_owned(), counts]
}

/// Sends a command to Valgrind in the process of a control plane.
fn monitor(control: &ControlPlane, command: &str) {
    let mut monitor = Command::new(tools::valgrind("vgdb"));
    let output = monitor.arg(format!("--pid={}", control.process_id())).args(command.split(' ')).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// What Valgrind has counted.
struct Counts {
    instructions: u64,
    allocations: u64,
}

impl Counts {
    /// Reads a file of Callgrind: the calls of each function follow a line with the name of the called function, which is a number
    /// after its first occurrence.
    fn read(file: &Path) -> Self {
        let text = std::fs::read_to_string(file).unwrap();
        let (mut names, mut callee) = (HashMap::new(), "");
        let mut counts = Self { instructions: 0, allocations: 0 };
        for line in text.lines() {
            match line.split_once(['=', ':']) {
                Some(("fn" | "cfn", function)) => {
                    if let Some((id, name)) = function.split_once(' ') {
                        names.insert(id, name);
                    }
                    let id = function.split(' ').next().unwrap();
                    callee = names[id];
                }
                Some(("calls", count)) if is_allocation(callee) => {
                    counts.allocations += count.split(' ').next().unwrap().parse::<u64>().unwrap();
                }
                Some(("totals", count)) => counts.instructions = count.trim().parse().unwrap(),
                _ => {}
            }
        }
        counts
    }
}

/// Whether the allocator of the process calls this function of mimalloc.
fn is_allocation(function: &str) -> bool {
    ["mi_malloc_aligned", "mi_zalloc_aligned", "mi_realloc_aligned"].contains(&function)
}
