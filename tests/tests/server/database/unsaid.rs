//! What is done is done, also if nobody can be told on standard output.

use super::{does, files_in, number, open, refuses};
use countersign_tests::{ControlPlane, Postgres};
use std::fs::File;

/// What the command says where nothing can be written, as on a disk that is full.
#[track_caller]
fn unsaid(control: &ControlPlane, arguments: &[&str]) -> String {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = control.prepare(arguments).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    let first = said.lines().next().unwrap_or_default();
    assert!(first.contains("everything was done, but standard output cannot be written (No space left"), "{said}");
    said
}

#[tokio::test]
async fn command_with_a_full_output_still_reports_that_it_succeeded() {
    let (postgres, folder) = (Postgres::start().await, tempfile::tempdir().unwrap());
    let mut control = ControlPlane::start().await;
    let file = folder.path().join("backup").to_str().unwrap().to_owned();
    let said = unsaid(&control, &["backup", &file]);
    assert!(said.contains("a backup as of ") && said.contains("keep ") && said.contains("master.key"), "{said}");
    assert_eq!(files_in(folder.path()), ["backup".to_owned()].into());
    control.terminate().await;

    let said = unsaid(&control, &["restore", &file, "--replace"]);
    assert!(said.contains("restored from ") && said.contains("roles that were revoked"), "{said}");
    control.restart().await;
    control.terminate().await;

    let url = postgres.database().await;
    let there = format!("database.url={url}");
    let said = unsaid(&control, &["--set", &there, "migrate"]);
    assert!(said.contains("from version 0 to version "), "{said}");
    assert!(does(&control, &["--set", &there, "migrate"]).contains("nothing to do"));
    let said = unsaid(&control, &["migrate", "--to", &url]);
    assert!(said.contains("are equal in both databases") && said.contains("Next: set database.url"), "{said}");
    assert_eq!(number(&mut open(&url).await, "SELECT COUNT(*) FROM deployment").await, 1);
    refuses(&control, &["migrate", "--to", &postgres.database().await], &["already migrated"]);
}
