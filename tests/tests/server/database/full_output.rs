//! Tests that commands with a full standard output still report that they succeeded.

use super::{assert_refused, files_in, path_in, succeed};
use countersign_tests::{ControlPlane, Database, Postgres};
use std::fs::File;

/// Runs a command with a full standard output, and returns its error output.
#[track_caller]
fn run_with_full_output(control: &ControlPlane, arguments: &[&str]) -> String {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = control.prepare(arguments).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let message = String::from_utf8(output.stderr).unwrap();
    let first = message.lines().next().unwrap_or_default();
    assert!(first.contains("the command succeeded, but standard output cannot be written (No space left"), "{message}");
    message
}

#[tokio::test]
async fn command_with_a_full_output_still_reports_that_it_succeeded() {
    let (postgres, folder) = (Postgres::start().await, tempfile::tempdir().unwrap());
    let mut control = ControlPlane::start_process().await;
    let file = path_in(&folder, "backup");
    let message = run_with_full_output(&control, &["backup", &file]);
    assert!(
        message.contains("a backup as of ") && message.contains("keep ") && message.contains("master.key"),
        "{message}"
    );
    assert_eq!(files_in(folder.path()), ["backup".to_owned()].into());
    control.terminate().await;

    let message = run_with_full_output(&control, &["restore", &file, "--replace"]);
    assert!(message.contains("restored from ") && message.contains("roles that were revoked"), "{message}");
    control.restart().await;
    control.terminate().await;

    let url = postgres.create_database().await;
    let setting = format!("database.url={url}");
    let message = run_with_full_output(&control, &["--set", &setting, "migrate"]);
    assert!(message.contains("from version 0 to version "), "{message}");
    assert!(succeed(&control, &["--set", &setting, "migrate"]).contains("nothing to do"));
    let message = run_with_full_output(&control, &["migrate", "--to", &url]);
    assert!(message.contains("are equal in both databases") && message.contains("Next: set database.url"), "{message}");
    assert_eq!(Database::open(&url).await.number("SELECT COUNT(*) FROM deployment").await, 1);
    assert_refused(&control, &["migrate", "--to", &postgres.create_database().await], &["already migrated"]);
}
