//! Runs the blocks of a page in one `bash`, each with its output in a file of its own.

use crate::{
    checkout::Checkout,
    output::last_literal,
    page::{Block, Kind},
};
use std::{
    fmt::Write,
    fs,
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

/// How long a page may take on a busy machine.
const DEADLINE: Duration = Duration::from_mins(3);

/// Tenths of a second that a server may take to print what its page shows.
const TENTHS_TO_START: u32 = 600;

/// The result of running the blocks.
pub struct Outcome {
    /// What each block printed; `None` if it did not run.
    pub printed: Vec<Option<String>>,
    pub failure: Option<String>,
}

/// Runs the blocks in this checkout.
pub fn run(blocks: &[Block], checkout: &Checkout) -> Outcome {
    let folder = checkout.path("output");
    fs::create_dir(&folder).unwrap();
    let script = checkout.path("page.sh");
    fs::write(&script, script_text(blocks, &folder)).unwrap();
    let mut bash = Bash::start(&script, checkout);
    let status = bash.ended();
    let printed: Vec<_> = (0..blocks.len()).map(|number| fs::read_to_string(file(&folder, number)).ok()).collect();
    let failure = (!status.is_some_and(|status| status.success())).then(|| {
        let ran = |number: &usize| blocks[*number].kind == Kind::Run && printed[*number].is_some();
        let last = (0..blocks.len()).rfind(ran).unwrap_or_default();
        let ending = status.map_or_else(|| "takes too long".to_owned(), |status| format!("failed with {status}"));
        let (Block { place, code, .. }, output) = (&blocks[last], printed[last].as_deref().unwrap_or_default());
        format!("{place}: {ending}\n---- the block\n{code}\n---- it printed\n{output}")
    });
    Outcome { printed, failure }
}

fn file(folder: &Path, number: usize) -> std::path::PathBuf {
    folder.join(number.to_string())
}

/// Builds the script. A block fails as soon as one of its commands fails.
fn script_text(blocks: &[Block], folder: &Path) -> String {
    let mut script = "set -euo pipefail\n".to_owned();
    for (number, Block { kind, code, expected, .. }) in blocks.iter().enumerate() {
        let file = file(folder, number).display().to_string();
        match kind {
            Kind::Ignored => {}
            Kind::Run => write!(script, "exec >'{file}' 2>&1\n{code}").unwrap(),
            Kind::Background => {
                writeln!(script, "{{\n{code}}} >'{file}' 2>&1 &").unwrap();
                if let Some(literal) = expected.as_deref().and_then(last_literal) {
                    let wait = format!("grep -qsF '{literal}' '{file}' && break; sleep 0.1");
                    writeln!(script, "for _ in {{1..{TENTHS_TO_START}}}; do {wait}; done").unwrap();
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
    #[expect(clippy::disallowed_methods, reason = "a deadline of the test itself")]
    fn ended(&mut self) -> Option<ExitStatus> {
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
        let _ended = Command::new("kill").args(["-s", "KILL", "--", &group]).status();
        let _status = self.0.wait();
    }
}
