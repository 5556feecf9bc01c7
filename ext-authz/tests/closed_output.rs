//! Tests that the program does not panic if standard output or standard error is a closed pipe or a full disk.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::{
    fs::OpenOptions,
    io::{PipeReader, Read, Write},
    net::TcpListener,
    process::{Command, Stdio},
};

/// The exit code of a Rust program that panicked.
const PANIC_EXIT_CODE: i32 = 101;

/// The size of the buffer of a pipe on Linux.
const PIPE_SIZE: usize = 65_536;

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_countersign-ext-authz"));
    command.env_clear().args(arguments);
    command
}

/// A file on which every write fails, as on a full disk.
fn full_disk() -> Stdio {
    OpenOptions::new().write(true).open("/dev/full").unwrap().into()
}

/// A pipe whose reading end is closed.
fn closed_pipe() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

/// A full pipe that nobody reads. It is closed when the returned reader is dropped.
fn full_pipe() -> (Stdio, PipeReader) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(&vec![b'\n'; PIPE_SIZE]).unwrap();
    (writer.into(), reader)
}

#[test]
fn invalid_flag_exits_with_2_if_stderr_is_full_or_closed() {
    for (name, stderr) in [("full disk", full_disk()), ("closed pipe", closed_pipe())] {
        let status = command(&["--set", "no.such=key"]).stderr(stderr).stdout(Stdio::null()).status().unwrap();
        assert_eq!(status.code(), Some(2), "{name}");
    }
}

#[test]
fn help_and_version_do_not_panic_if_stdout_is_full_or_closed() {
    for argument in ["--help", "--version"] {
        for (name, stdout) in [("full disk", full_disk()), ("closed pipe", closed_pipe())] {
            let mut child = command(&[argument]).stdout(stdout).stderr(Stdio::piped()).spawn().unwrap();
            let mut stderr = String::new();
            child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
            assert_ne!(child.wait().unwrap().code(), Some(PANIC_EXIT_CODE), "{argument}, {name}: {stderr}");
            assert!(!stderr.contains("panicked"), "{argument}, {name}: {stderr}");
        }
    }
}

#[test]
fn runs_and_shuts_down_if_the_log_cannot_be_written() {
    let (full_pipe, _reader) = full_pipe();
    for (name, stderr) in [("full disk", full_disk()), ("closed pipe", closed_pipe()), ("full pipe", full_pipe)] {
        let control_plane = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("sync.urls=http://{}", control_plane.local_addr().unwrap());
        let settings = ["sync.keys=svc_sk_test", "listen.grpc=127.0.0.1:0", "listen.admin=127.0.0.1:0", &url];
        let arguments: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
        let mut child = command(&arguments).stderr(stderr).stdout(Stdio::null()).spawn().unwrap();
        // The program logs each lost connection, so a second connection shows that the first log line caused no panic.
        for _attempt in 0..2 {
            drop(control_plane.accept().unwrap());
        }
        assert_eq!(child.try_wait().unwrap(), None, "the program exited, {name}");
        let kill_status = Command::new("kill").arg(child.id().to_string()).status().unwrap();
        assert!(kill_status.success());
        assert_eq!(child.wait().unwrap().code(), Some(0), "{name}");
    }
}
