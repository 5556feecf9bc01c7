//! Runs the blocks of a page in one `bash` process and writes the output of each block to a separate file.

use crate::{
    checkout::Checkout,
    output::last_literal,
    page::{Block, BlockKind},
};
use std::{
    fmt::Write,
    fs,
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

/// Time that a page may take on a busy machine.
const DEADLINE: Duration = Duration::from_mins(3);

/// Tenths of a second that a server may take until it prints its expected output.
const MAX_STARTUP_TENTHS: u32 = 600;

/// The result of running the blocks of a page.
pub struct Outcome {
    /// Output of each block; `None` if the block did not run.
    pub outputs: Vec<Option<String>>,
    pub failure: Option<String>,
}

pub fn run(blocks: &[Block], checkout: &Checkout) -> Outcome {
    let folder = checkout.path("output");
    fs::create_dir(&folder).unwrap();
    let script = checkout.path("page.sh");
    fs::write(&script, script_text(blocks, &folder)).unwrap();
    let mut bash = Bash::start(&script, checkout);
    let status = bash.wait_for_exit();
    let outputs: Vec<_> =
        (0..blocks.len()).map(|number| fs::read_to_string(output_file(&folder, number)).ok()).collect();
    let failure = (!status.is_some_and(|status| status.success())).then(|| {
        let has_run = |number: &usize| blocks[*number].kind == BlockKind::Run && outputs[*number].is_some();
        let last = (0..blocks.len()).rfind(has_run).unwrap_or_default();
        let ending = status.map_or_else(|| "takes too long".to_owned(), |status| format!("failed with {status}"));
        let (Block { location, code, .. }, output) = (&blocks[last], outputs[last].as_deref().unwrap_or_default());
        format!("{location}: {ending}\n---- the block\n{code}\n---- its output\n{output}")
    });
    Outcome { outputs, failure }
}

fn output_file(folder: &Path, number: usize) -> std::path::PathBuf {
    folder.join(number.to_string())
}

/// Builds the script. A block fails as soon as one of its commands fails.
fn script_text(blocks: &[Block], folder: &Path) -> String {
    let mut script = "set -euo pipefail\n".to_owned();
    for (number, Block { kind, code, expected, .. }) in blocks.iter().enumerate() {
        let file = output_file(folder, number).display().to_string();
        match kind {
            BlockKind::Ignored => {}
            BlockKind::Run => write!(script, "exec >'{file}' 2>&1\n{code}").unwrap(),
            BlockKind::Background => {
                writeln!(script, "{{\n{code}}} >'{file}' 2>&1 &").unwrap();
                if let Some(literal) = expected.as_deref().and_then(last_literal) {
                    let wait = format!("grep -qsF '{literal}' '{file}' && break; sleep 0.1");
                    writeln!(script, "for _ in {{1..{MAX_STARTUP_TENTHS}}}; do {wait}; done").unwrap();
                }
            }
        }
    }
    script
}

/// A `bash` process and its children.
struct Bash(Child);

impl Bash {
    fn start(script: &Path, checkout: &Checkout) -> Self {
        let mut command = Command::new("bash");
        command.arg(script).current_dir(checkout.path("")).env_clear().envs(checkout.environment());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        Self(command.spawn().unwrap())
    }

    /// Waits until the process exits; returns `None` after the deadline.
    #[expect(clippy::disallowed_methods, reason = "the deadline of a test needs real time")]
    fn wait_for_exit(&mut self) -> Option<ExitStatus> {
        let started = Instant::now();
        while started.elapsed() < DEADLINE {
            if let Some(status) = self.0.try_wait().unwrap() {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        None
    }
}

impl Drop for Bash {
    /// Kills the servers that the page started, which are in the same process group.
    fn drop(&mut self) {
        let group = format!("-{}", self.0.id());
        let _result = Command::new("kill").args(["-s", "KILL", "--", &group]).status();
        let _status = self.0.wait();
    }
}
