//! Runs the command `countersign` with a separate home folder and environment.

use crate::{ControlPlane, tools};
use serde_json::Value;
use std::{
    path::PathBuf,
    process::{Command, Output},
};
use tempfile::TempDir;

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

    /// Like [`Shell::new`], plus variables from the `dev.env` of a control plane. `names` omit the prefix
    /// `COUNTERSIGN_`.
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

    /// Runs the command.
    pub fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("the binary runs")
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
        let output = self.run(arguments);
        (
            output.status.code().expect("the process has an exit code"),
            String::from_utf8(output.stderr).expect("the text is UTF-8"),
        )
    }
}

impl Default for Shell {
    fn default() -> Self {
        Self::new()
    }
}
