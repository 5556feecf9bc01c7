//! The database as a whole, with the commands of the operator: brought up to date, backed up, restored, moved to PostgreSQL.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a database that cannot be made ends the test")]

mod backup;
mod schema;

use countersign_tests::ControlPlane;
use sqlx::{AnyConnection, AssertSqlSafe, Connection};
use std::{path::Path, process::Output};

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
