//! Database commands of the operator: migrate, back up, restore, transfer to PostgreSQL.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a database that cannot be made ends the test")]

mod backup;
mod full_output;
mod killed_transfer;
mod refusals;
mod restore;
mod schema;
mod transfer;

use countersign_tests::{ControlPlane, tools};
use sqlx::{AnyConnection, AssertSqlSafe, Connection, Executor};
use std::{collections::BTreeSet, path::Path, process::Output, time::Duration};

/// Runs a command that must succeed; returns its output.
#[track_caller]
fn succeed(control: &ControlPlane, arguments: &[&str]) -> String {
    let output = control.command(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a command that must fail with exit code 1 and one line of error that contains all of these words.
#[track_caller]
fn assert_refused(control: &ControlPlane, arguments: &[&str], words: &[&str]) -> String {
    let output = control.command(arguments);
    let message = error_of(&output);
    assert!(words.iter().all(|word| message.contains(word)), "{arguments:?}: expected {words:?}: {message}");
    message
}

/// The error of a failed command, which is one line.
#[track_caller]
fn error_of(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    let message = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(message.trim_end().lines().count(), 1, "{message}");
    message
}

/// Opens the database at a URL.
async fn open(url: &str) -> AnyConnection {
    sqlx::any::install_default_drivers();
    AnyConnection::connect(url).await.expect("the database opens")
}

/// Opens a database file.
async fn open_file(file: &Path) -> AnyConnection {
    open(&format!("sqlite://{}", file.display())).await
}

async fn number(database: &mut AnyConnection, sql: &str) -> i64 {
    let found = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(database).await;
    found.unwrap_or_else(|error| panic!("{sql}: {error}"))
}

async fn texts(database: &mut AnyConnection, sql: &str) -> Vec<String> {
    let found = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_all(database).await;
    found.unwrap_or_else(|error| panic!("{sql}: {error}"))
}

/// Executes a statement on a database file without a server; creates the file if it does not exist.
async fn execute_on_file(file: &Path, sql: &str) {
    let mut database = open(&format!("sqlite://{}?mode=rwc", file.display())).await;
    let done = database.execute(AssertSqlSafe(sql.to_owned())).await;
    done.unwrap_or_else(|error| panic!("{sql}: {error}"));
    database.close().await.unwrap();
}

/// Queries a number from a database file.
async fn query_file(file: &Path, sql: &str) -> i64 {
    let mut database = open_file(file).await;
    let found = number(&mut database, sql).await;
    database.close().await.unwrap();
    found
}

/// The names of all files in a folder.
fn files_in(folder: &Path) -> BTreeSet<String> {
    let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.collect()
}

/// Asserts that the server refuses to start, with this reason.
async fn assert_start_refused(control: &ControlPlane, settings: &[&str], reason: &str) {
    let mut command = tokio::process::Command::new(tools::binary("countersign-control-plane"));
    command.args(["--dev", "--set", &format!("data_dir={}", control.folder().display())]).kill_on_drop(true);
    let url = format!("database.url={}", control.database_url());
    let any = ["api", "sync", "admin"].map(|port| format!("listen.{port}=127.0.0.1:0"));
    for setting in any.iter().chain([&url]).map(String::as_str).chain(settings.iter().copied()) {
        command.args(["--set", setting]);
    }
    let output = tokio::time::timeout(Duration::from_secs(20), command.output())
        .await
        .expect("the server must not start")
        .unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && message.contains(reason), "expected {reason}: {output:?}");
}
