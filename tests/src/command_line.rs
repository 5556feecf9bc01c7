//! Runs the command `countersign` with a separate home folder and environment.

use crate::{ControlPlane, tools};
use serde_json::Value;
use std::{
    io::Write as _,
    path::PathBuf,
    process::{Command, Output, Stdio},
};
use tempfile::TempDir;

/// The variables of `dev.env` that the command reads, without the prefix `COUNTERSIGN_`.
pub const ALL: [&str; 5] = ["URL", "CA", "SERVICE_ID", "SERVICE_KEY", "HUMAN_TOKEN"];

/// Arguments that register an agent with the name `Typed` and the key of the profile. A test may add others.
pub const REGISTER: [&str; 6] = ["agent", "register", "--email", "a@example.org", "--name", "Typed"];

/// Home folder and environment variables with which the command runs.
pub struct Shell {
    home: TempDir,
    environment: Vec<(String, String)>,
}

impl Shell {
    /// Creates an empty home folder and an environment with only `PATH`.
    pub fn new() -> Self {
        let path = ("PATH".to_owned(), std::env::var("PATH").unwrap_or_default());
        Self { home: tempfile::tempdir().expect("a temporary folder can be created"), environment: vec![path] }
    }

    /// Like [`Shell::new`], plus variables from the `dev.env` of a control plane. `names` omit the prefix `COUNTERSIGN_`.
    pub fn with_env(control: &ControlPlane, names: &[&str]) -> Self {
        let mut shell = Self::new();
        for name in names {
            shell.export(&format!("COUNTERSIGN_{name}"), &control.env[*name]);
        }
        shell
    }

    /// Sets a variable.
    pub fn export(&mut self, name: &str, value: &str) {
        self.unset(name);
        self.environment.push((name.to_owned(), value.to_owned()));
    }

    /// Removes a variable.
    pub fn unset(&mut self, name: &str) {
        self.environment.retain(|(existing, _)| existing != name);
    }

    /// A path in the home folder.
    pub fn path(&self, relative: &str) -> PathBuf {
        self.home.path().join(relative)
    }

    /// A path in the home folder that does not exist yet.
    pub fn new_path(&self, name: &str) -> PathBuf {
        let mut paths = (1..).map(|number| self.path(&format!("{name}-{number}")));
        paths.find(|path| !path.exists()).expect("the iterator is infinite")
    }

    /// A path in the configuration folder of the command.
    pub fn profile_path(&self, name: &str) -> PathBuf {
        self.path("countersign").join(name)
    }

    /// Builds the command with these arguments.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(tools::binary("countersign"));
        command.args(arguments).current_dir(self.home.path()).env_clear();
        command.env("XDG_CONFIG_HOME", self.home.path()).env("HOME", self.home.path());
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Builds a command that runs a script of `sh`, in which `"$@"` is the command with these arguments.
    pub fn within(&self, script: &str, arguments: &[&str]) -> Command {
        let inner = self.command(arguments);
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).arg(inner.get_program()).args(inner.get_args());
        command.current_dir(self.home.path()).env_clear();
        command.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command
    }

    /// Creates a key and registers an agent with it, with the defaults of the profile. Returns the id of the agent.
    #[track_caller]
    pub fn register_agent(&self) -> String {
        self.stdout(&["agent", "keygen"]);
        self.stdout(&REGISTER)
    }

    /// Runs the command.
    pub fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("the binary runs")
    }

    /// Runs the command with this standard input.
    pub fn run_with_input(&self, arguments: &[&str], input: &str) -> Output {
        let mut command = self.command(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary runs");
        child.stdin.take().expect("stdin is piped").write_all(input.as_bytes()).expect("the command reads its input");
        child.wait_with_output().expect("the command ends")
    }

    /// Runs the command, which must succeed, and returns its notes, warnings and hints on standard error.
    #[track_caller]
    pub fn notes(&self, arguments: &[&str]) -> String {
        let (code, _, notes) = parts(&self.run(arguments));
        assert_eq!(code, 0, "{arguments:?}: {notes}");
        notes
    }

    /// Runs the command, which must succeed, and returns its standard output.
    #[track_caller]
    pub fn stdout(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).expect("the text is UTF-8").trim().to_owned()
    }

    /// Like [`Shell::stdout`], with `-o json`. Returns the parsed output.
    #[track_caller]
    pub fn json(&self, arguments: &[&str]) -> Value {
        let text = self.stdout(&[&["-o", "json"], arguments].concat());
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {text}"))
    }

    /// Runs a command that fails, and returns its exit code and its standard error.
    pub fn failure(&self, arguments: &[&str]) -> (i32, String) {
        let (code, _, error) = parts(&self.run(arguments));
        (code, error)
    }

    /// Runs a command that must fail with this exit code and with an error that contains these texts. Returns the error.
    #[track_caller]
    pub fn assert_fails(&self, code: i32, arguments: &[&str], texts: &[&str]) -> String {
        let (actual, error) = self.failure(arguments);
        let is_expected = actual == code && texts.iter().all(|text| error.contains(text));
        assert!(is_expected, "{arguments:?}: expected {code} and {texts:?}, got {actual} and {error}");
        error
    }

    /// The error that a failing command prints with `-o json`.
    #[track_caller]
    pub fn json_error(&self, arguments: &[&str]) -> Value {
        let (_, text) = self.failure(&[&["-o", "json"], arguments].concat());
        let error: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {text}"));
        error["error"].clone()
    }
}

/// The exit code, the standard output without white space at its end, and the standard error.
pub fn parts(output: &Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("the text is UTF-8");
    let code = output.status.code().expect("the process has an exit code");
    (code, text(&output.stdout).trim_end().to_owned(), text(&output.stderr))
}

impl Default for Shell {
    fn default() -> Self {
        Self::new()
    }
}
