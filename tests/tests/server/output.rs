//! Tests of commands whose standard output or standard error is full or closed.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]

use countersign_tests::ControlPlane;
use std::{fs::File, process::Stdio};

fn full_device() -> File {
    File::options().write(true).open("/dev/full").unwrap()
}

#[tokio::test]
async fn commands_report_a_full_standard_output() {
    let control = ControlPlane::start_process_with(&["database.url="]).await;
    for arguments in [
        &["human-token", "mint", "--subject", "ann"][..],
        &["openapi"],
        &["config", "check"],
        &["config", "print"],
        &["audit", "verify"],
        &["audit", "export"],
    ] {
        let output = control.prepare(arguments).stdout(full_device()).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {error}");
        assert!(error.contains("standard output: No space left on device"), "{arguments:?}: {error}");
        assert!(!error.contains("panicked"), "{arguments:?}: {error}");
    }
}

#[tokio::test]
async fn commands_survive_a_closed_standard_output() {
    let control = ControlPlane::start_process_with(&["database.url="]).await;
    let run_with_closed_output = |arguments: &[&str]| {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = control.prepare(arguments).stdout(writer).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for arguments in [&["human-token", "mint", "--subject", "ann"][..], &["audit", "export"]] {
        let (code, error) = run_with_closed_output(arguments);
        assert_eq!(code, Some(1), "{arguments:?}: {error}");
        assert!(error.contains("Broken pipe") && !error.contains("panicked"), "{arguments:?}: {error}");
    }
    for arguments in [&["openapi"][..], &["config", "print"]] {
        assert_eq!(
            run_with_closed_output(arguments),
            (Some(0), String::new()),
            "{arguments:?}: a closed pipe is not an error"
        );
    }
}

#[tokio::test]
async fn errors_keep_their_exit_code_with_a_full_standard_error() {
    let control = ControlPlane::start_process_with(&["database.url="]).await;
    for (arguments, code) in [(&["--set", "nonsense=1", "serve"][..], 2), (&["backup", "/nowhere/backup"], 1)] {
        let status = control.prepare(arguments).stdout(Stdio::null()).stderr(full_device()).status().unwrap();
        assert_eq!(status.code(), Some(code), "{arguments:?}");
    }
}

#[tokio::test]
async fn dev_mode_logs_that_its_rate_limits_are_raised() {
    let control = ControlPlane::start_process_with(&["limits.auth_per_minute=2"]).await;
    control.wait_for_log("rate limits that are not set are 1000000 calls").await;
    let printed = String::from_utf8(control.command(&["config", "print"]).stdout).unwrap();
    assert!(printed.contains("auth_per_minute = 2"), "{printed}");
}
