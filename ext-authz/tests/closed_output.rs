//! The program does not panic if standard output or standard error is closed or full.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::{
    fs::OpenOptions,
    io::Read,
    process::{Command, Stdio},
};

/// The exit code of a Rust program that panicked.
const PANICKED: i32 = 101;

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_countersign-ext-authz"));
    command.env_clear().args(arguments);
    command
}

/// A file that refuses every write, as a full disk does.
fn full() -> Stdio {
    OpenOptions::new().write(true).open("/dev/full").unwrap().into()
}

/// A pipe whose reader is gone.
fn closed_pipe() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

#[test]
fn reports_usage_errors_with_full_or_closed_stderr() {
    for (name, stderr) in [("full", full()), ("closed", closed_pipe())] {
        let status = command(&["--set", "no.such=key"]).stderr(stderr).stdout(Stdio::null()).status().unwrap();
        assert_eq!(status.code(), Some(2), "{name}");
    }
}

#[test]
fn help_and_version_do_not_panic_with_full_or_closed_stdout() {
    for argument in ["--help", "--version"] {
        for (name, stdout) in [("full", full()), ("closed", closed_pipe())] {
            let mut child = command(&[argument]).stdout(stdout).stderr(Stdio::piped()).spawn().unwrap();
            let mut stderr = String::new();
            child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
            assert_ne!(child.wait().unwrap().code(), Some(PANICKED), "{argument}, {name}: {stderr}");
            assert!(!stderr.contains("panicked"), "{argument}, {name}: {stderr}");
        }
    }
}

#[test]
fn runs_with_a_log_that_cannot_be_written() {
    for (name, stderr) in [("full", full()), ("closed", closed_pipe())] {
        // An unusable address ends the program after it has logged.
        let arguments =
            ["--set", "sync.keys=svc_sk_test", "--set", "listen.grpc=192.0.2.1:1", "--set", "log.level=debug"];
        let status = command(&arguments).stderr(stderr).stdout(Stdio::null()).status().unwrap();
        assert_eq!(status.code(), Some(2), "{name}");
    }
}
