//! Tests of `migrate`, which migrates the schema before a server starts.

use super::{assert_refused, assert_start_refused, open_file, succeed};
use countersign_tests::{ControlPlane, Database, Postgres, tools};
use std::process::Command;

/// The versions of all migrations.
fn migrations() -> Vec<i64> {
    let files = std::fs::read_dir(tools::root().join("control-plane/migrations")).unwrap();
    let number = |name: String| name.split('_').next().unwrap().parse().unwrap();
    files.map(|entry| number(entry.unwrap().file_name().into_string().unwrap())).collect()
}

#[tokio::test]
async fn migrate_creates_the_schema_and_reports_it_once() {
    let (postgres, folder) = (Postgres::start().await, tempfile::tempdir().unwrap());
    let url = postgres.create_database().await;
    let file = folder.path().join("data").join("countersign.db");
    let on_postgres = format!("database.url={url}");
    let data = format!("data_dir={}", folder.path().join("data").display());
    for setting in [None, Some(&on_postgres)] {
        let migrate = || {
            let mut command = Command::new(tools::binary("countersign-control-plane"));
            command.args(["--dev", "--set", &data, "migrate"]);
            command.args(setting.iter().flat_map(|setting| ["--set", setting]));
            let output = command.output().unwrap();
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        let newest = migrations().into_iter().max().unwrap();
        assert_eq!(migrate(), format!("The schema was migrated from version 0 to version {newest}.\n"));
        assert_eq!(migrate(), format!("The schema version was already {newest}: nothing to do.\n"));
        let mut database = if setting.is_some() { Database::open(&url).await } else { open_file(&file).await };
        assert_eq!(database.number("SELECT COUNT(*) FROM deployment").await, 0, "there is no deployment yet");
    }
}

/// Operators run `migrate` before an upgrade, while replicas are running.
#[tokio::test]
async fn migrate_does_not_disturb_a_running_server() {
    let postgres = Postgres::start().await;
    let setting = format!("database.url={}", postgres.create_database().await);
    for control in [ControlPlane::start_process().await, ControlPlane::start_process_with(&[&setting]).await] {
        assert!(succeed(&control, &["migrate"]).contains("nothing to do"));
        control.create_role("after", &[]).await;
    }
}

/// A standby may be behind the primary and accepts no writes.
#[tokio::test]
async fn commands_refuse_a_standby() {
    let (mut postgres, mut control) = (Postgres::start().await, ControlPlane::start_process().await);
    control.terminate().await;
    let url = postgres.create_database().await;
    let setting = format!("database.url={url}");
    succeed(&control, &["--set", &setting, "migrate"]);
    postgres.become_standby().await;
    for command in ["migrate", "restore"] {
        assert_refused(&control, &["--set", &setting, command], &["standby", "name the primary"]);
    }
    assert_refused(&control, &["migrate", "--to", &url], &["is a standby", "name the primary"]);
    assert_start_refused(&control, &[&setting], "standby").await;
}

#[tokio::test]
async fn concurrent_migrations_create_one_schema() {
    let postgres = Postgres::start().await;
    let url = postgres.create_database().await;
    let folder = tempfile::tempdir().unwrap();
    let data = format!("data_dir={}", folder.path().display());
    let migrate = |_| {
        let mut command = tokio::process::Command::new(tools::binary("countersign-control-plane"));
        command.args(["--dev", "--set", &data, "--set", &format!("database.url={url}"), "migrate"]).output()
    };
    let outputs = futures_util::future::join_all((0..10).map(migrate)).await;
    for output in outputs {
        let output = output.unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    let mut database = Database::open(&url).await;
    let migrated = database.count("_sqlx_migrations WHERE success").await;
    assert_eq!(usize::try_from(migrated).unwrap(), migrations().len());
}

/// Migrations of a release never change, so a database with another first migration is not from a release.
#[tokio::test]
async fn database_of_a_program_that_was_never_released_is_refused() {
    let postgres = Postgres::start().await;
    let setting = format!("database.url={}", postgres.create_database().await);
    for (setting, checksum) in [("database.url=", "x'00'"), (&setting, r"'\x00'::bytea")] {
        let mut control = ControlPlane::start_process_with(&[setting]).await;
        control.terminate().await;
        let mut database = Database::open(&control.database_url()).await;
        database.execute(&format!("UPDATE _sqlx_migrations SET checksum = {checksum}")).await;
        database.close().await;
        assert_start_refused(&control, &[], "never released made this database").await;
        assert_refused(&control, &["migrate"], &["never released made this database", "data_dir"]);
    }
}
