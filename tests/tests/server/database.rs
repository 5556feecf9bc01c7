//! The database as a whole, with the commands of the operator: brought up to date, backed up, restored, moved to PostgreSQL.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a database that cannot be made ends the test")]

mod backup;
mod killed;
mod refusals;
mod restoring;
mod schema;
mod transfer;
mod unsaid;

use countersign_tests::{ControlPlane, tools};
use sqlx::{AnyConnection, AssertSqlSafe, Connection, Executor};
use std::{collections::BTreeSet, path::Path, process::Output, time::Duration};

/// A command that does what it is for; what it says.
#[track_caller]
fn does(control: &ControlPlane, arguments: &[&str]) -> String {
    let output = control.command(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// A command that refuses, with this exit code and all of these words, and says nothing else.
#[track_caller]
fn refuses(control: &ControlPlane, arguments: &[&str], words: &[&str]) -> String {
    let output = control.command(arguments);
    let said = failed(&output);
    assert!(words.iter().all(|word| said.contains(word)), "{arguments:?} must say {words:?}: {said}");
    said
}

/// What a command said that failed, in one line.
#[track_caller]
fn failed(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    let said = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(said.trim_end().lines().count(), 1, "{said}");
    said
}

/// A database at a URL, open for whatever anybody might do to it.
async fn open(url: &str) -> AnyConnection {
    sqlx::any::install_default_drivers();
    AnyConnection::connect(url).await.expect("the database opens")
}

/// A database in a file.
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

/// Does something to a database in a file that nobody serves; the file is made if there is none.
async fn in_place(file: &Path, sql: &str) {
    let mut database = open(&format!("sqlite://{}?mode=rwc", file.display())).await;
    let done = database.execute(AssertSqlSafe(sql.to_owned())).await;
    done.unwrap_or_else(|error| panic!("{sql}: {error}"));
    database.close().await.unwrap();
}

/// A number from a database in a file.
async fn run_file(file: &Path, sql: &str) -> i64 {
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

/// That the server ends at its start, and says why.
async fn refuses_to_serve(control: &ControlPlane, settings: &[&str], why: &str) {
    let mut command = tokio::process::Command::new(tools::binary("countersign-control-plane"));
    command.args(["--dev", "--set", &format!("data_dir={}", control.folder().display())]).kill_on_drop(true);
    let url = format!("database.url={}", control.database_url());
    let any = ["api", "sync", "admin"].map(|port| format!("listen.{port}=127.0.0.1:0"));
    for setting in any.iter().chain([&url]).map(String::as_str).chain(settings.iter().copied()) {
        command.args(["--set", setting]);
    }
    let output =
        tokio::time::timeout(Duration::from_secs(20), command.output()).await.expect("it must not serve").unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains(why), "must say {why}: {output:?}");
}
