//! Tests the database commands (migrate, back up, restore, transfer to PostgreSQL), and what operators see in an outage.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests panic on unexpected values")]

mod backup;
mod full_output;
mod killed_transfer;
mod outage;
mod refusals;
mod restore;
mod schema;
mod transfer;

use countersign_tests::{ControlPlane, Database, tools};
use std::{collections::BTreeSet, path::Path, process::Output, time::Duration};
use tempfile::TempDir;

/// Runs a command that must succeed, and returns its output.
#[track_caller]
pub fn succeed(control: &ControlPlane, arguments: &[&str]) -> String {
    let output = control.command(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a command that must fail with exit code 1 and one line of error output that contains all of these texts.
#[track_caller]
fn assert_refused(control: &ControlPlane, arguments: &[&str], expected_texts: &[&str]) -> String {
    let output = control.command(arguments);
    let message = error_line(&output);
    assert!(
        expected_texts.iter().all(|text| message.contains(text)),
        "{arguments:?}: expected {expected_texts:?}: {message}"
    );
    message
}

/// The error output of a failed command, which must be one line.
#[track_caller]
fn error_line(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    let message = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(message.trim_end().lines().count(), 1, "{message}");
    message
}

/// Opens a database file.
async fn open_file(file: &Path) -> Database {
    Database::open(&format!("sqlite://{}", file.display())).await
}

/// Executes a statement on a database file without a server. Creates the file if it does not exist.
async fn execute_on_file(file: &Path, sql: &str) {
    let mut database = Database::open(&format!("sqlite://{}?mode=rwc", file.display())).await;
    database.execute(sql).await;
    database.close().await;
}

/// Queries a number from a database file.
async fn query_file(file: &Path, sql: &str) -> i64 {
    let mut database = open_file(file).await;
    let result = database.number(sql).await;
    database.close().await;
    result
}

fn path_in(folder: &TempDir, name: &str) -> String {
    folder.path().join(name).to_str().unwrap().to_owned()
}

fn files_in(folder: &Path) -> BTreeSet<String> {
    let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.collect()
}

/// Asserts that the server refuses to start and reports this reason.
async fn assert_start_refused(control: &ControlPlane, settings: &[&str], reason: &str) {
    let mut command = tokio::process::Command::new(tools::binary("countersign-control-plane"));
    command.args(["--dev", "--set", &format!("data_dir={}", control.folder().display())]).kill_on_drop(true);
    let url = format!("database.url={}", control.database_url());
    let listen = ["api", "sync", "admin"].map(|port| format!("listen.{port}=127.0.0.1:0"));
    for setting in listen.iter().chain([&url]).map(String::as_str).chain(settings.iter().copied()) {
        command.args(["--set", setting]);
    }
    let output = tokio::time::timeout(Duration::from_secs(20), command.output())
        .await
        .expect("the server must not start")
        .unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && message.contains(reason), "expected {reason}: {output:?}");
}
