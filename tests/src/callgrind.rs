//! Counts the instructions and allocations of a server with Callgrind, a tool of Valgrind. The counts hardly depend on the machine.

use crate::tools;
use countersign_process::{Clock as _, SystemClock};
use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    process::Command,
};
use tokio::time::sleep;

/// The counts of a process that was started with [`Callgrind::wrapper`].
pub struct Callgrind {
    counts: PathBuf,
}

impl Callgrind {
    /// Callgrind will write its counts to files in this folder.
    pub fn new(folder: &Path) -> Self {
        Self { counts: folder.join("callgrind") }
    }

    /// The program that starts the server, with its arguments. Callgrind does not count at first, so that the server starts fast.
    pub fn wrapper(&self) -> Vec<String> {
        let program = tools::program("valgrind").display().to_string();
        let counts = format!("--callgrind-out-file={}", self.counts.display());
        vec![program, "--tool=callgrind".to_owned(), "--instr-atstart=no".to_owned(), counts]
    }

    /// Sends this number of equal requests, one after the other, and returns the instructions and allocations per request. What the
    /// process does in the same time without requests is measured, too, and subtracted.
    pub async fn counts_per_request(&self, process: u32, requests: u64, mut send: impl AsyncFnMut()) -> Counts {
        let begun = SystemClock.since_boot();
        let busy = async {
            for _ in 0..requests {
                send().await;
            }
        };
        let busy = self.counts_during(process, 1, busy).await;
        let idle = self.counts_during(process, 2, sleep(SystemClock.since_boot().saturating_sub(begun))).await;
        Counts {
            instructions: busy.instructions.saturating_sub(idle.instructions) / requests,
            allocations: busy.allocations.saturating_sub(idle.allocations) / requests,
        }
    }

    /// Counts until `work` ends. Callgrind writes the counts to the file with the number `dump`, and resets them.
    async fn counts_during(&self, process: u32, dump: u32, work: impl Future<Output = ()>) -> Counts {
        monitor(process, "instrumentation on");
        work.await;
        monitor(process, "instrumentation off");
        monitor(process, "dump");
        Counts::read(&self.counts.with_extension(dump.to_string()))
    }
}

/// Sends a command to Valgrind in a process.
fn monitor(process: u32, command: &str) {
    let mut vgdb = Command::new(tools::program("vgdb"));
    vgdb.arg(format!("--pid={process}")).args(command.split(' '));
    let output = vgdb.output().expect("Valgrind has this program");
    assert!(output.status.success(), "{output:?}");
}

/// What Valgrind has counted.
#[derive(Debug, Clone, Copy)]
pub struct Counts {
    /// Instructions of the process.
    pub instructions: u64,
    /// Allocations in Rust code, which all go through the allocator of the process.
    pub allocations: u64,
}

impl Counts {
    /// Fails if the instructions or allocations differ by more than a part of the expected numbers.
    pub fn assert_near(self, (instructions, allocations): (u64, u64), tolerance_percent: u64) {
        let is_near = |measured: u64, expected: u64| measured.abs_diff(expected) <= expected * tolerance_percent / 100;
        assert!(
            is_near(self.instructions, instructions) && is_near(self.allocations, allocations),
            "a request has {} instructions and {} allocations; expected are {instructions} and {allocations}",
            self.instructions,
            self.allocations
        );
    }

    /// Reads a file of Callgrind: the calls of each function follow a line with the name of the called function, which is a number
    /// after its first occurrence.
    fn read(file: &Path) -> Self {
        let text = std::fs::read_to_string(file).expect("Callgrind writes the file");
        let (mut names, mut callee) = (HashMap::new(), "");
        let mut counts = Self { instructions: 0, allocations: 0 };
        for line in text.lines() {
            match line.split_once(['=', ':']) {
                Some(("fn" | "cfn", function)) => {
                    if let Some((id, name)) = function.split_once(' ') {
                        names.insert(id, name);
                    }
                    callee = names[first_word(function)];
                }
                Some(("calls", count)) if is_allocation(callee) => {
                    counts.allocations += first_word(count).parse::<u64>().expect("calls are a number");
                }
                Some(("totals", count)) => {
                    counts.instructions = count.trim().parse().expect("instructions are a number");
                }
                _ => {}
            }
        }
        counts
    }
}

fn first_word(text: &str) -> &str {
    text.split_once(' ').map_or(text, |(word, _)| word)
}

/// Whether the allocator of the process calls this function of mimalloc.
fn is_allocation(function: &str) -> bool {
    ["mi_malloc_aligned", "mi_zalloc_aligned", "mi_realloc_aligned"].contains(&function)
}
