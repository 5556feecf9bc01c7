//! The command line `countersign`, as somebody types it: in a home of their own, with an environment of
//! their own.

use crate::{ControlPlane, tools};
use serde_json::Value;
use std::{
    path::PathBuf,
    process::{Command, Output},
};
use tempfile::TempDir;

/// Somebody at a shell.
pub struct Shell {
    home: TempDir,
    environment: Vec<(String, String)>,
}

impl Shell {
    /// A new user who knows nothing but where programs are.
    pub fn new() -> Self {
        let path = ("PATH".to_owned(), std::env::var("PATH").unwrap_or_default());
        Self { home: tempfile::tempdir().expect("a temporary folder"), environment: vec![path] }
    }

    /// Somebody who knows some of what `dev.env` says, by names without the prefix `COUNTERSIGN_`.
    pub fn knowing(control: &ControlPlane, names: &[&str]) -> Self {
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

    /// Forgets a variable.
    pub fn unset(&mut self, name: &str) {
        self.environment.retain(|(known, _)| known != name);
    }

    /// A path below the home.
    pub fn path(&self, below: &str) -> PathBuf {
        self.home.path().join(below)
    }

    /// A path below the home where nothing is yet.
    pub fn new_path(&self, name: &str) -> PathBuf {
        let mut paths = (1..).map(|number| self.path(&format!("{name}-{number}")));
        paths.find(|path| !path.exists()).expect("numbers go on")
    }

    /// A file that the client keeps.
    pub fn kept(&self, name: &str) -> PathBuf {
        self.path("countersign").join(name)
    }

    /// A command to be run.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(tools::binary("countersign"));
        command.args(arguments).current_dir(self.home.path()).env_clear();
        command.env("XDG_CONFIG_HOME", self.home.path()).env("HOME", self.home.path());
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Runs it.
    pub fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("the binary runs")
    }

    /// What it printed, if all went well.
    #[track_caller]
    pub fn said(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).expect("text").trim().to_owned()
    }

    /// The same with `-o json`.
    #[track_caller]
    pub fn json(&self, arguments: &[&str]) -> Value {
        let text = self.said(&[&["-o", "json"], arguments].concat());
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {text}"))
    }

    /// The exit code, and what went to standard error.
    pub fn failed(&self, arguments: &[&str]) -> (i32, String) {
        let output = self.run(arguments);
        (output.status.code().expect("an exit code"), String::from_utf8(output.stderr).expect("text"))
    }
}

impl Default for Shell {
    fn default() -> Self {
        Self::new()
    }
}
